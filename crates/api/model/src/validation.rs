//! Whether a defaulted Pod is acceptable, in upstream's order and words.
//!
//! Every check runs; errors are collected, never only the first. Checks look at the Pod as it will be stored,
//! after gates and defaulting. Affinity, topology spread and the volume sources of clouds are not looked into:
//! they mean nothing on one machine.

mod container;
mod env;
mod metadata;
mod mount;
mod names;
mod probe;
mod resize;
mod resources;
mod scheduling;
mod security;
mod update;
mod volume;
pub(crate) mod workload;

use std::collections::BTreeSet;

use crate::field::{Errors, FieldError, Path};
use crate::pod::{Pod, PodSpec};
use crate::template::PodTemplateSpec;
pub(crate) use container::as_container;
pub(crate) use metadata::MIRROR_POD;
pub use metadata::{NameRule, validate_metadata};
use pulselet_schema::Profile;
pub(crate) use resize::validate_resize;
pub(crate) use update::{validate_ephemeral_update, validate_update};

const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// What checks deep inside a spec need to know about the whole.
struct Context<'a> {
    spec: &'a PodSpec,
    profile: Profile,
    signals: SignalRule,
    /// Names of the Pod's resource claims.
    claims: BTreeSet<&'a str>,
    tolerated: Tolerated,
}

/// Errors that a v1.36 server tolerates in an update because the stored template already had them.
#[derive(Debug, Clone, Copy, Default)]
struct Tolerated {
    /// Namespaced sysctls together with the host's namespace.
    host_sysctls: bool,
    /// Paths of projected tokens that leave their volume.
    token_paths: bool,
    /// A deletion cost that is not a number.
    deletion_cost: bool,
}

/// The rules that apply to a spec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpecRules {
    pub(crate) profile: Profile,
    pub(crate) signals: SignalRule,
}

/// What is made of `lifecycle.stopSignal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalRule {
    Checked,
    /// Its gate is off.
    Refused,
}

impl<'a> Context<'a> {
    fn new(spec: &'a PodSpec, profile: Profile, signals: SignalRule) -> Self {
        let claims = spec
            .resource_claims
            .iter()
            .map(|claim| claim.name.as_str())
            .collect();
        Self {
            spec,
            profile,
            signals,
            claims,
            tolerated: Tolerated::default(),
        }
    }
}

/// All that is wrong with a template at `path`. In an update, `old` is the stored template.
fn validate_template(
    errors: &mut Errors,
    template: &PodTemplateSpec,
    old: Option<&PodTemplateSpec>,
    path: Path<'_>,
    rules: SpecRules,
) {
    let tolerated = old.map(Tolerated::of_template).unwrap_or_default();
    let spec = &template.spec;
    metadata::validate_template(errors, template, path, tolerated.deletion_cost);
    let spec_path = path.child("spec");
    let context = Context {
        tolerated,
        ..Context::new(spec, rules.profile, rules.signals)
    };
    // Pods get their names later.
    validate_spec(errors, "", spec_path, &context);
    if !spec.ephemeral_containers.is_empty() {
        errors.forbidden(
            spec_path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

impl Tolerated {
    fn of_template(template: &PodTemplateSpec) -> Self {
        Self {
            host_sysctls: security::uses_host_sysctls(&template.spec),
            token_paths: volume::has_bad_token_path(&template.spec.volumes),
            deletion_cost: metadata::bad_deletion_cost(&template.metadata).is_some(),
        }
    }
}

/// All that is wrong with a new Pod.
pub(crate) fn validate_create(pod: &Pod, profile: Profile, signals: SignalRule) -> Vec<FieldError> {
    let mut errors = Errors::default();
    validate_pod(&mut errors, pod, profile, signals);
    let path = Path::new("spec");
    if !pod.spec.ephemeral_containers.is_empty() {
        errors.forbidden(path.child("ephemeralContainers"), "cannot be set on create");
    }
    if !pod.spec.node_name.is_empty() && !pod.spec.scheduling_gates.is_empty() {
        errors.forbidden(
            path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
    errors.into_vec()
}

/// Errors for stop signals that an update brings in while their gate is off.
pub(crate) fn refused_signals(paths: &[String]) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for path in paths {
        errors.forbidden(Path::new(path), probe::REFUSED_SIGNAL);
    }
    errors.into_vec()
}

/// What must hold for every Pod, new or old.
fn validate_pod(errors: &mut Errors, pod: &Pod, profile: Profile, signals: SignalRule) {
    let meta_path = Path::new("metadata");
    metadata::validate(errors, &pod.metadata, meta_path);
    let annotations = meta_path.child("annotations");
    metadata::validate_pod_annotations(errors, &pod.metadata, &pod.spec.node_name, annotations);
    let path = Path::new("spec");
    let context = Context::new(&pod.spec, profile, signals);
    validate_spec(errors, pod.name(), path, &context);
    let (containers, init_containers) = (path.child("containers"), path.child("initContainers"));
    for (list, path) in [
        (&pod.spec.containers, containers),
        (&pod.spec.init_containers, init_containers),
    ] {
        for (index, item) in list.iter().enumerate() {
            container::validate_image_whitespace(errors, item, path.index(index));
        }
    }
}

fn validate_spec(errors: &mut Errors, pod_name: &str, path: Path<'_>, context: &Context<'_>) {
    let spec = context.spec;
    if spec.termination_grace_period_seconds.is_none() {
        errors.required(path.child("terminationGracePeriodSeconds"), "");
    }
    let volumes = volume::validate_volumes(errors, pod_name, path.child("volumes"), context);
    container::validate_containers(errors, spec, &volumes, path.child("containers"), context);
    container::validate_init_containers(errors, spec, &volumes, path.child("initContainers"), context);
    container::validate_ephemeral_containers(
        errors,
        spec,
        &volumes,
        path.child("ephemeralContainers"),
        context,
    );
    validate_host_network(errors, path, context);
    container::one_of(
        errors,
        path.child("restartPolicy"),
        &spec.restart_policy,
        &["Always", "OnFailure", "Never"],
    );
    container::one_of(errors, path.child("dnsPolicy"), &spec.dns_policy, &DNS_POLICIES);
    metadata::validate_labels(errors, Some(&spec.node_selector), path.child("nodeSelector"));
    security::validate_pod(errors, path.child("securityContext"), context);
    scheduling::validate_dns(errors, path.child("dnsConfig"), context);
    scheduling::validate_gates(errors, path, context);
    validate_host_users(errors, path, context);
    validate_names(errors, path, context);
    security::validate_os(errors, path, context);
}

/// With the host's network a port of the container is a port of the host.
fn validate_host_network(errors: &mut Errors, path: Path<'_>, context: &Context<'_>) {
    if !context.spec.host_network {
        return;
    }
    let list = path.child("containers");
    for (index, container) in context.spec.containers.iter().enumerate() {
        let container_path = list.index(index);
        let ports = container_path.child("ports");
        for (index, port) in container.ports.iter().enumerate() {
            // Only a template can lack the port: a Pod has it by default.
            if port.host_port != 0 && port.host_port != port.container_port {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(ports.index(index).child("hostPort"), port.host_port, detail);
            }
        }
    }
}

fn validate_host_users(errors: &mut Errors, path: Path<'_>, context: &Context<'_>) {
    if context.spec.host_users != Some(false) {
        return;
    }
    let spec = context.spec;
    // The spelling of the paths is upstream's.
    for (field, set) in [
        ("hostNetwork", spec.host_network),
        ("HostPID", spec.host_pid),
        ("HostIPC", spec.host_ipc),
    ] {
        if set {
            errors.forbidden(path.child(field), "when `pod.Spec.HostUsers` is false");
        }
    }
}

/// Single fields of the spec, in upstream's order.
fn validate_names(errors: &mut Errors, path: Path<'_>, context: &Context<'_>) {
    let spec = context.spec;
    for (field, name) in [
        ("serviceAccountName", &spec.service_account_name),
        ("nodeName", &spec.node_name),
    ] {
        if !name.is_empty() {
            errors.invalid_each(path.child(field), name, names::dns_subdomain(name));
        }
    }
    if let Some(seconds) = spec.active_deadline_seconds
        && let Some(detail) = names::positive_i32_range(seconds, 1)
    {
        errors.invalid(path.child("activeDeadlineSeconds"), seconds, detail);
    }
    scheduling::validate_host_names(errors, path, context);
    scheduling::validate_tolerations(errors, &spec.tolerations, path.child("tolerations"));
    scheduling::validate_host_aliases(errors, path.child("hostAliases"), context);
    if !spec.priority_class_name.is_empty() {
        let name = &spec.priority_class_name;
        errors.invalid_each(path.child("priorityClassName"), name, names::dns_subdomain(name));
    }
    if let Some(name) = &spec.runtime_class_name {
        errors.invalid_each(path.child("runtimeClassName"), name, names::dns_subdomain(name));
    }
    if let Some(policy) = &spec.preemption_policy {
        container::one_of(
            errors,
            path.child("preemptionPolicy"),
            policy,
            &["PreemptLowerPriority", "Never"],
        );
    }
    resources::validate_overhead(errors, &spec.overhead, path.child("overhead"));
}
