//! Probes, lifecycle hooks, their handlers and stop signals.
//!
//! Upstream's checks come first and in upstream's order; those of the fields that only Pulselet has follow
//! them, probe by probe.

use super::container::validate_port_number;
use super::{Context, SignalRule, names};
use crate::field::{Errors, Path};
use crate::probe::{ExecAction, GrpcAction, HttpGetAction, IntOrString, Lifecycle, LifecycleHandler, Probe};
use crate::probe::{SleepAction, TcpSocketAction};
use pulselet_schema::Profile;
use pulselet_vocabulary::Signal;

/// The shortest period of a probe that runs a command in the container.
const MIN_EXEC_PERIOD_MS: i64 = 500;
/// The shortest period of a probe over the network.
const MIN_NETWORK_PERIOD_MS: i64 = 200;
/// The shortest timeout: what a healthy server on the same machine keeps also while it is busy.
const MIN_TIMEOUT_MS: i64 = 100;
/// Why a stop signal is refused while its gate is off.
pub(crate) const REFUSED_SIGNAL: &str = "may not be set while the feature gate ContainerStopSignals is off";
/// Milliseconds are an offset to the seconds, so they stay below one second either way.
const MAX_OFFSET_MS: i32 = 999;

pub(super) fn validate_liveness(errors: &mut Errors, probe: &Probe, path: Path<'_>, context: &Context<'_>) {
    validate_probe(errors, probe, path, context);
    validate_single_success(errors, probe, path);
    validate_initial_delay(errors, probe, path);
    for (field, offset) in [
        ("periodMilliseconds", probe.period_milliseconds),
        ("timeoutMilliseconds", probe.timeout_milliseconds),
    ] {
        if let Some(offset) = offset {
            errors.invalid(path.child(field), offset, "must not be set for livenessProbes");
        }
    }
    validate_initialization_threshold(errors, probe, path);
}

pub(super) fn validate_readiness(errors: &mut Errors, probe: &Probe, path: Path<'_>, context: &Context<'_>) {
    validate_probe(errors, probe, path, context);
    if let Some(grace) = probe.termination_grace_period_seconds {
        let detail = "must not be set for readinessProbes";
        errors.invalid(path.child("terminationGracePeriodSeconds"), grace, detail);
    }
    validate_initial_delay(errors, probe, path);
    validate_period(errors, probe, path);
    validate_timeout(errors, probe, path);
    validate_initialization_threshold(errors, probe, path);
}

pub(super) fn validate_startup(errors: &mut Errors, probe: &Probe, path: Path<'_>, context: &Context<'_>) {
    validate_probe(errors, probe, path, context);
    validate_single_success(errors, probe, path);
    validate_initial_delay(errors, probe, path);
    validate_period(errors, probe, path);
    validate_timeout(errors, probe, path);
    if probe.initialization_failure_threshold != 0 {
        let detail = "must not be set for startupProbes";
        errors.invalid(
            path.child("initializationFailureThreshold"),
            probe.initialization_failure_threshold,
            detail,
        );
    }
}

fn validate_probe(errors: &mut Errors, probe: &Probe, path: Path<'_>, context: &Context<'_>) {
    validate_handler(errors, Handler::of_probe(probe), path, context);
    non_negative(
        errors,
        probe.initial_delay_seconds,
        path.child("initialDelaySeconds"),
    );
    non_negative(errors, probe.timeout_seconds, path.child("timeoutSeconds"));
    non_negative(errors, probe.period_seconds, path.child("periodSeconds"));
    non_negative(errors, probe.success_threshold, path.child("successThreshold"));
    non_negative(errors, probe.failure_threshold, path.child("failureThreshold"));
    let (minimum, detail) = match context.profile {
        // Zero is the proposal's "kill at once".
        Profile::Pulselet => (0, "must be greater than or equal to 0"),
        Profile::Kubernetes => (1, "must be greater than 0"),
    };
    if let Some(grace) = probe
        .termination_grace_period_seconds
        .filter(|grace| *grace < minimum)
    {
        errors.invalid(path.child("terminationGracePeriodSeconds"), grace, detail);
    }
}

/// Liveness and startup are about a container's health, which one success proves.
fn validate_single_success(errors: &mut Errors, probe: &Probe, path: Path<'_>) {
    if probe.success_threshold != 1 {
        let path = path.child("successThreshold");
        errors.invalid(path, probe.success_threshold, "must be 1");
    }
}

fn non_negative(errors: &mut Errors, value: i32, path: Path<'_>) {
    if value < 0 {
        errors.invalid(path, value, "must be greater than or equal to 0");
    }
}

/// The offset is in range, and the period that results is not too short for its handler.
fn validate_period(errors: &mut Errors, probe: &Probe, path: Path<'_>) {
    let Some(offset) = probe.period_milliseconds else {
        return;
    };
    let path = path.child("periodMilliseconds");
    if !offset_in_range(errors, offset, path) {
        return;
    }
    let (minimum, handler) = if probe.exec.is_some() {
        (MIN_EXEC_PERIOD_MS, "exec probes")
    } else {
        (MIN_NETWORK_PERIOD_MS, "probes over the network")
    };
    // A negative periodSeconds has its own error already.
    let seconds = i64::from(probe.period_seconds.max(0));
    if seconds * 1000 + i64::from(offset) < minimum {
        let detail = format!(
            "periodSeconds and periodMilliseconds together must be at least {minimum}ms for {handler}"
        );
        errors.invalid(path, offset, detail);
    }
}

fn validate_timeout(errors: &mut Errors, probe: &Probe, path: Path<'_>) {
    let Some(offset) = probe.timeout_milliseconds else {
        return;
    };
    let path = path.child("timeoutMilliseconds");
    // A negative timeoutSeconds has its own error already.
    let seconds = i64::from(probe.timeout_seconds.max(0));
    if offset_in_range(errors, offset, path) && seconds * 1000 + i64::from(offset) < MIN_TIMEOUT_MS {
        let detail =
            format!("timeoutSeconds and timeoutMilliseconds together must be at least {MIN_TIMEOUT_MS}ms");
        errors.invalid(path, offset, detail);
    }
}

fn validate_initial_delay(errors: &mut Errors, probe: &Probe, path: Path<'_>) {
    let Some(offset) = probe.initial_delay_milliseconds else {
        return;
    };
    let path = path.child("initialDelayMilliseconds");
    let seconds = i64::from(probe.initial_delay_seconds.max(0));
    if offset_in_range(errors, offset, path) && seconds * 1000 + i64::from(offset) < 0 {
        let detail = "initialDelaySeconds and initialDelayMilliseconds together must be at least 0ms";
        errors.invalid(path, offset, detail);
    }
}

fn offset_in_range(errors: &mut Errors, offset: i32, path: Path<'_>) -> bool {
    let in_range = (-MAX_OFFSET_MS..=MAX_OFFSET_MS).contains(&offset);
    if !in_range {
        errors.invalid(path, offset, "must be between -999 and 999, inclusive");
    }
    in_range
}

fn validate_initialization_threshold(errors: &mut Errors, probe: &Probe, path: Path<'_>) {
    non_negative(
        errors,
        probe.initialization_failure_threshold,
        path.child("initializationFailureThreshold"),
    );
}

/// The handlers of a probe or a hook; neither allows all of them, but the rules are the same.
#[derive(Default, Clone, Copy)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HttpGetAction>,
    tcp_socket: Option<&'a TcpSocketAction>,
    grpc: Option<&'a GrpcAction>,
    sleep: Option<&'a SleepAction>,
}

impl<'a> Handler<'a> {
    fn of_probe(probe: &'a Probe) -> Self {
        Self {
            exec: probe.exec.as_ref(),
            http_get: probe.http_get.as_ref(),
            tcp_socket: probe.tcp_socket.as_ref(),
            grpc: probe.grpc.as_ref(),
            sleep: None,
        }
    }

    fn of_hook(hook: &'a LifecycleHandler) -> Self {
        Self {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref(),
            tcp_socket: hook.tcp_socket.as_ref(),
            grpc: None,
            sleep: hook.sleep.as_ref(),
        }
    }
}

/// Exactly one handler. The first one found is checked, any further one is only refused.
fn validate_handler(errors: &mut Errors, handler: Handler<'_>, path: Path<'_>, context: &Context<'_>) {
    let mut found = false;
    let mut first = |errors: &mut Errors, field: &str| {
        if found {
            errors.forbidden(path.child(field), "may not specify more than 1 handler type");
        }
        !std::mem::replace(&mut found, true)
    };
    if let Some(exec) = handler.exec
        && first(errors, "exec")
        && exec.command.is_empty()
    {
        errors.required(path.child("exec").child("command"), "");
    }
    if let Some(http_get) = handler.http_get
        && first(errors, "httpGet")
    {
        validate_http_get(errors, http_get, path.child("httpGet"));
    }
    if let Some(tcp_socket) = handler.tcp_socket
        && first(errors, "tcpSocket")
    {
        validate_port(errors, &tcp_socket.port, path.child("tcpSocket").child("port"));
    }
    if let Some(grpc) = handler.grpc
        && first(errors, "grpc")
    {
        validate_port_number(errors, grpc.port, path.child("grpc").child("port"));
    }
    if let Some(sleep) = handler.sleep
        && first(errors, "sleep")
    {
        validate_sleep(errors, sleep, path.child("sleep"), context);
    }
    if !found {
        errors.required(path, "must specify a handler type");
    }
}

fn validate_http_get(errors: &mut Errors, http_get: &HttpGetAction, path: Path<'_>) {
    if http_get.path.is_empty() {
        errors.required(path.child("path"), "");
    }
    validate_port(errors, &http_get.port, path.child("port"));
    if !["HTTP", "HTTPS"].contains(&http_get.scheme.as_str()) {
        errors.not_supported(path.child("scheme"), &http_get.scheme, &["HTTP", "HTTPS"]);
    }
    for header in &http_get.http_headers {
        errors.invalid_each(
            path.child("httpHeaders"),
            &header.name,
            names::http_header_name(&header.name),
        );
    }
}

fn validate_port(errors: &mut Errors, port: &IntOrString, path: Path<'_>) {
    match port {
        IntOrString::Int(number) => validate_port_number(errors, *number, path),
        IntOrString::String(name) => errors.invalid_each(path, name, names::port_name(name)),
    }
}

fn validate_sleep(errors: &mut Errors, sleep: &SleepAction, path: Path<'_>, context: &Context<'_>) {
    let Some(grace) = context.spec.termination_grace_period_seconds else {
        return;
    };
    if sleep.seconds < 0 || sleep.seconds > grace {
        let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.invalid(path, sleep.seconds, detail);
    }
}

pub(super) fn validate_lifecycle(
    errors: &mut Errors,
    lifecycle: &Lifecycle,
    path: Path<'_>,
    context: &Context<'_>,
) {
    if let Some(hook) = &lifecycle.post_start {
        validate_handler(errors, Handler::of_hook(hook), path.child("postStart"), context);
    }
    if let Some(hook) = &lifecycle.pre_stop {
        validate_handler(errors, Handler::of_hook(hook), path.child("preStop"), context);
    }
    if let Some(name) = &lifecycle.stop_signal {
        let path = path.child("stopSignal");
        match context.signals {
            SignalRule::Checked => validate_stop_signal(errors, name, path, context),
            SignalRule::Refused => errors.forbidden(path, REFUSED_SIGNAL),
        }
    }
}

fn validate_stop_signal(errors: &mut Errors, name: &str, path: Path<'_>, context: &Context<'_>) {
    let supported: Vec<Signal> = match (
        context.spec.os.as_ref().map(|os| os.name.as_str()),
        context.profile,
    ) {
        (None, Profile::Kubernetes) => {
            errors.forbidden(path, "may not be set for containers with empty `spec.os.name`");
            return;
        }
        (None, Profile::Pulselet) | (Some("linux"), _) => Signal::all().collect(),
        (Some("windows"), _) => Signal::WINDOWS.to_vec(),
        // The name of the system has its own error.
        (Some(_), _) => return,
    };
    let is_supported = name.parse().is_ok_and(|signal| supported.contains(&signal));
    if !is_supported {
        let mut names: Vec<&str> = supported.into_iter().map(Signal::name).collect();
        names.sort_unstable();
        errors.not_supported(path, name, &names);
    }
}
