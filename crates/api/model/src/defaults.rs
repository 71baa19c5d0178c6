//! What a Pod means where its author said nothing.
//!
//! Defaulting is idempotent: a defaulted Pod is left as it is. It runs before validation, so validation sees
//! complete values.

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
    set_pod_only_defaults(&mut pod.spec);
}

/// The defaults that Pods and the templates of workloads share.
pub(crate) fn set_spec_defaults(spec: &mut PodSpec) {
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
    spec.termination_grace_period_seconds
        .get_or_insert(TERMINATION_GRACE_PERIOD_SECONDS);
    for volume in &mut spec.volumes {
        set_volume_defaults(volume);
    }
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        set_container_defaults(container);
    }
    for container in &mut spec.ephemeral_containers {
        set_ephemeral_container_defaults(container);
    }
    if let Some(resources) = &mut spec.resources {
        round_resources(resources);
    }
    round(Some(&mut spec.overhead));
}

/// The defaults that a template leaves to the Pods made from it.
fn set_pod_only_defaults(spec: &mut PodSpec) {
    spec.enable_service_links.get_or_insert(true);
    // Upstream takes a negative grace period for the shortest one.
    if let Some(seconds) = spec
        .termination_grace_period_seconds
        .as_mut()
        .filter(|seconds| **seconds < 0)
    {
        *seconds = 1;
    }
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        request_limits(&mut container.resources);
        if spec.host_network {
            use_host_ports(&mut container.ports);
        }
    }
    if let Some(resources) = &mut spec.resources {
        request_limits(resources);
    }
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

pub(crate) fn set_container_defaults(container: &mut Container) {
    let pull_policy = default_pull_policy(&container.image);
    fill(&mut container.image_pull_policy, pull_policy);
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    set_port_defaults(&mut container.ports);
    set_env_defaults(&mut container.env);
    drop_unset_mount_flags(&mut container.volume_mounts);
    round_resources(&mut container.resources);
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
    drop_unset_mount_flags(&mut container.volume_mounts);
    set_lifecycle_defaults(container.lifecycle.as_mut());
}

/// Zero is written, and means one.
fn set_divisor(field: Option<&mut core::ResourceFieldSelector>) {
    if let Some(field) = field {
        field.divisor.get_or_insert_with(|| Quantity("0".to_owned()));
    }
}

/// False is not written.
fn drop_unset_mount_flags(mounts: &mut [core::VolumeMount]) {
    for mount in mounts {
        mount.read_only.take_if(|read_only| !*read_only);
    }
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
        // An empty value says no more than its absence.
        variable.value.take_if(|value| value.is_empty());
        let resource_ref = variable
            .value_from
            .as_mut()
            .and_then(|source| source.resource_field_ref.as_mut());
        set_divisor(resource_ref);
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

fn round_resources(resources: &mut core::ResourceRequirements) {
    round(resources.limits.as_mut());
    round(resources.requests.as_mut());
}

/// A limit without a request is also the request.
fn request_limits(resources: &mut core::ResourceRequirements) {
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
    set_storage_defaults(volume);
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

/// Sources that need a cloud or a storage cluster, and claims that are made with their Pods.
fn set_storage_defaults(volume: &mut core::Volume) {
    let fill = |field: &mut Option<String>, default: &str| fill(field.get_or_insert_default(), default);
    if let Some(template) = volume
        .ephemeral
        .as_mut()
        .and_then(|source| source.volume_claim_template.as_mut())
    {
        let mode = template.spec.volume_mode.take();
        template.spec.volume_mode = mode.or_else(|| Some("Filesystem".to_owned()));
    }
    if let Some(iscsi) = &mut volume.iscsi {
        fill(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        fill(&mut rbd.pool, "rbd");
        fill(&mut rbd.user, "admin");
        fill(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        fill(&mut disk.caching_mode, "ReadWrite");
        fill(&mut disk.kind, "Shared");
        fill(&mut disk.fs_type, "ext4");
        disk.read_only.get_or_insert(false);
    }
    if let Some(scale_io) = &mut volume.scale_io {
        fill(&mut scale_io.storage_mode, "ThinProvisioned");
        fill(&mut scale_io.fs_type, "xfs");
    }
}

fn set_downward_defaults(files: Option<&mut [core::DownwardAPIVolumeFile]>) {
    for file in files.unwrap_or_default() {
        set_divisor(file.resource_field_ref.as_mut());
        if let Some(field_ref) = &mut file.field_ref {
            fill(field_ref.api_version.get_or_insert_default(), "v1");
        }
    }
}
