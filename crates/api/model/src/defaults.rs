//! What a Pod means where its author said nothing.
//!
//! Defaulting is idempotent: a defaulted Pod is left as it is. It runs before validation, so validation sees
//! complete values. Defaults of volume sources that only clouds have are left to whoever uses those.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::image;
use crate::pod::{Container, ContainerPort, EphemeralContainer, Pod, PodSpec};
use crate::probe::{HttpGetAction, Lifecycle, LifecycleHandler, Probe};
use pulselet_schema::quantity::Amount;

/// Seconds between the stop signal and the kill.
const TERMINATION_GRACE_PERIOD_SECONDS: i64 = 30;
const PROBE_PERIOD_SECONDS: i32 = 10;
const PROBE_TIMEOUT_SECONDS: i32 = 1;
const PROBE_SUCCESS_THRESHOLD: i32 = 1;
const PROBE_FAILURE_THRESHOLD: i32 = 3;
/// Readable by all, writable by the owner.
const VOLUME_FILE_MODE: i32 = 0o644;
const TOKEN_EXPIRATION_SECONDS: i64 = 3600;

/// Fills in everything that is unset and has a default.
pub(crate) fn set_defaults(pod: &mut Pod) {
    if pod.metadata.namespace.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.namespace = Some("default".to_owned());
    }
    set_spec_defaults(&mut pod.spec);
}

fn set_spec_defaults(spec: &mut PodSpec) {
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    // One field under two names; the new name wins.
    if spec.service_account_name.is_empty() {
        spec.service_account_name.clone_from(&spec.service_account);
    } else {
        spec.service_account.clone_from(&spec.service_account_name);
    }
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    match &mut spec.termination_grace_period_seconds {
        // Upstream takes a negative grace period for the shortest one.
        Some(seconds) if *seconds < 0 => *seconds = 1,
        Some(_) => {}
        unset @ None => *unset = Some(TERMINATION_GRACE_PERIOD_SECONDS),
    }
    for volume in &mut spec.volumes {
        set_volume_defaults(volume);
    }
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        set_container_defaults(container);
        if spec.host_network {
            use_host_ports(&mut container.ports);
        }
    }
    for container in &mut spec.ephemeral_containers {
        set_ephemeral_container_defaults(container);
    }
    if let Some(resources) = &mut spec.resources {
        set_resource_defaults(resources);
    }
    round(Some(&mut spec.overhead));
}

fn fill(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

fn fill_number(field: &mut i32, default: i32) {
    if *field == 0 {
        *field = default;
    }
}

fn set_container_defaults(container: &mut Container) {
    let pull_policy = default_pull_policy(&container.image);
    fill(&mut container.image_pull_policy, pull_policy);
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    set_port_defaults(&mut container.ports);
    set_env_defaults(&mut container.env);
    set_resource_defaults(&mut container.resources);
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    for probe in probes.into_iter().flatten() {
        set_probe_defaults(probe);
    }
    set_lifecycle_defaults(container.lifecycle.as_mut());
}

fn set_ephemeral_container_defaults(container: &mut EphemeralContainer) {
    let pull_policy = default_pull_policy(&container.image);
    fill(&mut container.image_pull_policy, pull_policy);
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    set_port_defaults(&mut container.ports);
    set_env_defaults(&mut container.env);
    set_lifecycle_defaults(container.lifecycle.as_mut());
}

/// A moving tag is pulled every time.
fn default_pull_policy(image: &str) -> &'static str {
    if image::tag(image) == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    }
}

fn set_port_defaults(ports: &mut [ContainerPort]) {
    for port in ports {
        fill(&mut port.protocol, "TCP");
    }
}

fn use_host_ports(ports: &mut [ContainerPort]) {
    for port in ports {
        fill_number(&mut port.host_port, port.container_port);
    }
}

fn set_env_defaults(variables: &mut [core::EnvVar]) {
    for variable in variables {
        let field_ref = variable
            .value_from
            .as_mut()
            .and_then(|source| source.field_ref.as_mut());
        if let Some(field_ref) = field_ref {
            fill(field_ref.api_version.get_or_insert_default(), "v1");
        }
        let file_ref = variable
            .value_from
            .as_mut()
            .and_then(|source| source.file_key_ref.as_mut());
        if let Some(file_ref) = file_ref {
            file_ref.optional.get_or_insert(false);
        }
    }
}

/// A limit without a request is also the request.
fn set_resource_defaults(resources: &mut core::ResourceRequirements) {
    round(resources.limits.as_mut());
    round(resources.requests.as_mut());
    let Some(limits) = &resources.limits else { return };
    for (name, limit) in limits {
        resources
            .requests
            .get_or_insert_default()
            .entry(name.clone())
            .or_insert_with(|| limit.clone());
    }
}

/// Quantities of resources are kept in thousandths at the finest.
fn round(resources: Option<&mut BTreeMap<String, Quantity>>) {
    for quantity in resources.into_iter().flat_map(BTreeMap::values_mut) {
        if let Ok(amount) = Amount::parse(&quantity.0) {
            quantity.0 = amount.rounded_to_milli().to_string();
        }
    }
}

fn set_probe_defaults(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, PROBE_TIMEOUT_SECONDS);
    fill_number(&mut probe.period_seconds, PROBE_PERIOD_SECONDS);
    fill_number(&mut probe.success_threshold, PROBE_SUCCESS_THRESHOLD);
    fill_number(&mut probe.failure_threshold, PROBE_FAILURE_THRESHOLD);
    set_http_get_defaults(probe.http_get.as_mut());
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn set_http_get_defaults(http_get: Option<&mut HttpGetAction>) {
    if let Some(http_get) = http_get {
        fill(&mut http_get.path, "/");
        fill(&mut http_get.scheme, "HTTP");
    }
}

fn set_lifecycle_defaults(lifecycle: Option<&mut Lifecycle>) {
    let Some(lifecycle) = lifecycle else { return };
    for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop]
        .into_iter()
        .flatten()
    {
        let LifecycleHandler { http_get, .. } = hook;
        set_http_get_defaults(http_get.as_mut());
    }
}

fn set_volume_defaults(volume: &mut core::Volume) {
    let named = core::Volume {
        name: volume.name.clone(),
        ..core::Volume::default()
    };
    if *volume == named {
        volume.empty_dir = Some(core::EmptyDirVolumeSource::default());
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(VOLUME_FILE_MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        config_map.default_mode.get_or_insert(VOLUME_FILE_MODE);
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(VOLUME_FILE_MODE);
        set_downward_defaults(downward.items.as_deref_mut());
    }
    if let Some(image) = &mut volume.image {
        let policy = default_pull_policy(image.reference.as_deref().unwrap_or_default());
        fill(image.pull_policy.get_or_insert_default(), policy);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(VOLUME_FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(TOKEN_EXPIRATION_SECONDS);
            }
            if let Some(downward) = &mut source.downward_api {
                set_downward_defaults(downward.items.as_deref_mut());
            }
        }
    }
}

fn set_downward_defaults(files: Option<&mut [core::DownwardAPIVolumeFile]>) {
    for file in files.unwrap_or_default() {
        if let Some(field_ref) = &mut file.field_ref {
            fill(field_ref.api_version.get_or_insert_default(), "v1");
        }
    }
}
