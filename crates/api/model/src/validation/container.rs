//! Containers of all three kinds, apart from their probes and hooks.
//!
//! The order of the checks is upstream's: first what all containers share, then uniqueness of the name, then
//! what the kind of container allows.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerRestartRule, ResourceRequirements};

use super::probe::{validate_lifecycle, validate_liveness, validate_readiness, validate_startup};
use super::volume::VolumeNames;
use super::{Context, env, mount, names, resources, security};
use crate::field::{Errors, Path};
use crate::pod::{Container, ContainerPort, EphemeralContainer, PodSpec};

/// Rules of one container, as many as upstream allows.
const MAX_RESTART_RULES: usize = 20;
/// Exit codes in one rule: there are no more.
const MAX_EXIT_CODES: usize = 255;

pub(super) fn validate_containers(
    errors: &mut Errors,
    spec: &PodSpec,
    volumes: &VolumeNames<'_>,
    path: Path<'_>,
    context: &Context<'_>,
) {
    if spec.containers.is_empty() {
        errors.required(path, "");
        return;
    }
    let mut names = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let path = path.index(index);
        validate_common(errors, container, volumes, path, context);
        if !names.insert(container.name.as_str()) {
            errors.duplicate(path.child("name"), &container.name);
        }
        validate_health(errors, container, path, context);
        validate_restart_policy(errors, container, path);
    }
    validate_host_ports(errors, &spec.containers, path);
}

pub(super) fn validate_init_containers(
    errors: &mut Errors,
    spec: &PodSpec,
    volumes: &VolumeNames<'_>,
    path: Path<'_>,
    context: &Context<'_>,
) {
    if spec.init_containers.is_empty() {
        return;
    }
    let mut names: BTreeSet<&str> = spec
        .containers
        .iter()
        .map(|container| container.name.as_str())
        .collect();
    for (index, container) in spec.init_containers.iter().enumerate() {
        let list = path;
        let path = path.index(index);
        validate_common(errors, container, volumes, path, context);
        validate_init_restart_policy(errors, container, path);
        if names.contains(container.name.as_str()) {
            errors.duplicate(path.child("name"), &container.name);
        } else if !container.name.is_empty() {
            names.insert(&container.name);
        }
        // Init containers run one after the other, so each is looked at alone. Upstream reports index 0 for all.
        validate_host_ports(errors, std::slice::from_ref(container), list);
        if container.is_sidecar() {
            validate_health(errors, container, path, context);
        } else {
            forbid_health(
                errors,
                container,
                path,
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

pub(super) fn validate_ephemeral_containers(
    errors: &mut Errors,
    spec: &PodSpec,
    volumes: &VolumeNames<'_>,
    path: Path<'_>,
    context: &Context<'_>,
) {
    const NOT_HERE: &str = "cannot be set for an Ephemeral Container";
    if spec.ephemeral_containers.is_empty() {
        return;
    }
    let targets: BTreeSet<&str> = spec
        .containers
        .iter()
        .chain(&spec.init_containers)
        .map(|container| container.name.as_str())
        .collect();
    let mut names = targets.clone();
    for (index, ephemeral) in spec.ephemeral_containers.iter().enumerate() {
        let path = path.index(index);
        let container = as_container(ephemeral);
        validate_common(errors, &container, volumes, path, context);
        validate_image_whitespace(errors, &container, path);
        if !names.insert(ephemeral.name.as_str()) {
            errors.duplicate(path.child("name"), &ephemeral.name);
        }
        let target = ephemeral.target_container_name.as_str();
        if !target.is_empty() && !targets.contains(target) {
            errors.not_found(path.child("targetContainerName"), target);
        }
        forbid_unfit_for_ephemeral(errors, &container, path, NOT_HERE);
        let mounts = path.child("volumeMounts");
        for (index, mount) in ephemeral.volume_mounts.iter().enumerate() {
            let set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
            if set(&mount.sub_path) {
                errors.forbidden(mounts.index(index).child("subPath"), NOT_HERE);
            }
            if set(&mount.sub_path_expr) {
                errors.forbidden(mounts.index(index).child("subPathExpr"), NOT_HERE);
            }
        }
    }
}

fn forbid_unfit_for_ephemeral(errors: &mut Errors, container: &Container, path: Path<'_>, detail: &str) {
    let fields = [
        ("ports", !container.ports.is_empty()),
        (
            "resources",
            container.resources != ResourceRequirements::default(),
        ),
        ("resizePolicy", !container.resize_policy.is_empty()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", !container.restart_policy_rules.is_empty()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ];
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        errors.forbidden(path.child(field), detail);
    }
}

/// The part an ephemeral container shares with the others.
pub(crate) fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let ephemeral = ephemeral.clone();
    Container {
        name: ephemeral.name,
        image: ephemeral.image,
        command: ephemeral.command,
        args: ephemeral.args,
        working_dir: ephemeral.working_dir,
        ports: ephemeral.ports,
        env_from: ephemeral.env_from,
        env: ephemeral.env,
        resources: ephemeral.resources,
        resize_policy: ephemeral.resize_policy,
        restart_policy: ephemeral.restart_policy,
        restart_policy_rules: ephemeral.restart_policy_rules,
        volume_mounts: ephemeral.volume_mounts,
        volume_devices: ephemeral.volume_devices,
        liveness_probe: ephemeral.liveness_probe,
        readiness_probe: ephemeral.readiness_probe,
        startup_probe: ephemeral.startup_probe,
        lifecycle: ephemeral.lifecycle,
        termination_message_path: ephemeral.termination_message_path,
        termination_message_policy: ephemeral.termination_message_policy,
        image_pull_policy: ephemeral.image_pull_policy,
        security_context: ephemeral.security_context,
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        tty: ephemeral.tty,
    }
}

fn validate_common(
    errors: &mut Errors,
    container: &Container,
    volumes: &VolumeNames<'_>,
    path: Path<'_>,
    context: &Context<'_>,
) {
    if container.name.is_empty() {
        errors.required(path.child("name"), "");
    } else {
        errors.invalid_each(
            path.child("name"),
            &container.name,
            names::dns_label(&container.name),
        );
    }
    if container.image.is_empty() {
        errors.required(path.child("image"), "");
    }
    let policy = path.child("terminationMessagePolicy");
    one_of(
        errors,
        policy,
        &container.termination_message_policy,
        &["File", "FallbackToLogsOnError"],
    );
    validate_ports(errors, &container.ports, path.child("ports"));
    env::validate_env(errors, &container.env, path.child("env"));
    env::validate_env_from(errors, &container.env_from, path.child("envFrom"));
    mount::validate_mounts(errors, container, volumes, path.child("volumeMounts"));
    mount::validate_devices(errors, container, volumes, path.child("volumeDevices"));
    one_of(
        errors,
        path.child("imagePullPolicy"),
        &container.image_pull_policy,
        &["Always", "IfNotPresent", "Never"],
    );
    resources::validate_container(errors, &container.resources, path.child("resources"), context);
    validate_resize_policy(errors, container, path.child("resizePolicy"), context);
    security::validate_container(
        errors,
        container.security_context.as_ref(),
        path.child("securityContext"),
        context,
    );
}

/// A value that must be one of a few; empty is "required" rather than "not supported".
pub(super) fn one_of(errors: &mut Errors, path: Path<'_>, value: &str, supported: &[&str]) {
    if value.is_empty() {
        errors.required(path, "");
    } else if !supported.contains(&value) {
        errors.not_supported(path, value, supported);
    }
}

pub(super) fn validate_image_whitespace(errors: &mut Errors, container: &Container, path: Path<'_>) {
    if container.image.trim().len() != container.image.len() {
        let detail = "must not have leading or trailing whitespace";
        errors.invalid(path.child("image"), container.image.as_str(), detail);
    }
}

fn validate_health(errors: &mut Errors, container: &Container, path: Path<'_>, context: &Context<'_>) {
    if let Some(lifecycle) = &container.lifecycle {
        validate_lifecycle(errors, lifecycle, path.child("lifecycle"), context);
    }
    if let Some(probe) = &container.liveness_probe {
        validate_liveness(errors, probe, path.child("livenessProbe"), context);
    }
    if let Some(probe) = &container.readiness_probe {
        validate_readiness(errors, probe, path.child("readinessProbe"), context);
    }
    if let Some(probe) = &container.startup_probe {
        validate_startup(errors, probe, path.child("startupProbe"), context);
    }
}

fn forbid_health(errors: &mut Errors, container: &Container, path: Path<'_>, detail: &str) {
    let fields = [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ];
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        errors.forbidden(path.child(field), detail);
    }
}

const RULES_NEED_A_POLICY: &str = "must specify restartPolicy when restart rules are used";

/// Without a restart policy the rules of an init container are not read, unlike those of a regular container.
fn validate_init_restart_policy(errors: &mut Errors, container: &Container, path: Path<'_>) {
    if container.restart_policy.is_some() {
        validate_restart_policy(errors, container, path);
    } else if !container.restart_policy_rules.is_empty() {
        errors.required(path.child("restartPolicy"), RULES_NEED_A_POLICY);
    }
}

fn validate_restart_policy(errors: &mut Errors, container: &Container, path: Path<'_>) {
    let rules = &container.restart_policy_rules;
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => errors.required(path.child("restartPolicy"), RULES_NEED_A_POLICY),
        Some("Always" | "Never" | "OnFailure") => {}
        Some(policy) => errors.not_supported(
            path.child("restartPolicy"),
            policy,
            &["Always", "Never", "OnFailure"],
        ),
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        errors.too_many(path, rules.len(), MAX_RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        validate_restart_rule(errors, rule, path.index(index));
    }
}

/// Empty values are "not supported" here, and a list of exit codes may be empty.
fn validate_restart_rule(errors: &mut Errors, rule: &ContainerRestartRule, path: Path<'_>) {
    const ACTIONS: [&str; 2] = ["Restart", "RestartAllContainers"];
    const OPERATORS: [&str; 2] = ["In", "NotIn"];
    if !ACTIONS.contains(&rule.action.as_str()) {
        errors.not_supported(path.child("action"), &rule.action, &ACTIONS);
    }
    let path = path.child("exitCodes");
    let Some(exit_codes) = &rule.exit_codes else {
        errors.required(path, "must be specified");
        return;
    };
    if !OPERATORS.contains(&exit_codes.operator.as_str()) {
        errors.not_supported(path.child("operator"), &exit_codes.operator, &OPERATORS);
    }
    let count = exit_codes.values.as_deref().unwrap_or_default().len();
    if count > MAX_EXIT_CODES {
        errors.too_many(path.child("values"), count, MAX_EXIT_CODES);
    }
}

fn validate_ports(errors: &mut Errors, ports: &[ContainerPort], path: Path<'_>) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        if !port.name.is_empty() {
            let complaints = names::port_name(&port.name);
            if !complaints.is_empty() {
                errors.invalid_each(path.child("name"), &port.name, complaints);
            } else if !seen.insert(port.name.as_str()) {
                errors.duplicate(path.child("name"), &port.name);
            }
        }
        if port.container_port == 0 {
            errors.required(path.child("containerPort"), "");
        } else {
            validate_port_number(errors, port.container_port, path.child("containerPort"));
        }
        if port.host_port != 0 {
            validate_port_number(errors, port.host_port, path.child("hostPort"));
        }
        if port.protocol.is_empty() {
            errors.required(path.child("protocol"), "");
        } else if !["SCTP", "TCP", "UDP"].contains(&port.protocol.as_str()) {
            errors.not_supported(path.child("protocol"), &port.protocol, &["SCTP", "TCP", "UDP"]);
        }
    }
}

pub(super) fn validate_port_number(errors: &mut Errors, port: i32, path: Path<'_>) {
    for complaint in names::port_number(port) {
        errors.invalid(path, port, complaint);
    }
}

/// Two ports of the same protocol and address on one host cannot both be bound.
fn validate_host_ports(errors: &mut Errors, containers: &[Container], path: Path<'_>) {
    let mut taken = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let container_path = path.index(index);
        let ports = container_path.child("ports");
        for (index, port) in container
            .ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.host_port != 0)
        {
            if !taken.insert((&port.protocol, &port.host_ip, port.host_port)) {
                let taken = format!("{}/{}/{}", port.protocol, port.host_ip, port.host_port);
                errors.duplicate(ports.index(index).child("hostPort"), &taken);
            }
        }
    }
}

fn validate_resize_policy(errors: &mut Errors, container: &Container, path: Path<'_>, context: &Context<'_>) {
    let mut seen = BTreeSet::new();
    for (index, policy) in container.resize_policy.iter().enumerate() {
        if !seen.insert(policy.resource_name.as_str()) {
            errors.duplicate(path.index(index), &policy.resource_name);
        }
        one_of(errors, path, &policy.resource_name, &["cpu", "memory"]);
        one_of(
            errors,
            path,
            &policy.restart_policy,
            &["NotRequired", "RestartContainer"],
        );
        if context.spec.restart_policy == "Never" && policy.restart_policy != "NotRequired" {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.invalid(path, policy.restart_policy.as_str(), detail);
        }
    }
}
