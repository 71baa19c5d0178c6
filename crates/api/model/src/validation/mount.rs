//! Volume mounts and devices of a container: they refer to volumes that exist, and do not collide.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::VolumeMount;

use super::names;
use super::volume::VolumeNames;
use crate::field::{Errors, Path};
use crate::pod::Container;

pub(super) fn validate_mounts(
    errors: &mut Errors,
    container: &Container,
    volumes: &VolumeNames<'_>,
    list: Path<'_>,
) {
    let mut mount_points = BTreeSet::new();
    let device_names: BTreeSet<&str> = container
        .volume_devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    let device_paths: BTreeSet<&str> = container
        .volume_devices
        .iter()
        .map(|device| device.device_path.as_str())
        .collect();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let path = list.index(index);
        if mount.name.is_empty() {
            errors.required(path.child("name"), "");
        }
        if !volumes.contains(&mount.name) {
            errors.not_found(path.child("name"), &mount.name);
        }
        if mount.mount_path.is_empty() {
            errors.required(path.child("mountPath"), "");
        }
        if !mount_points.insert(mount.mount_path.as_str()) {
            errors.invalid(
                path.child("mountPath"),
                mount.mount_path.as_str(),
                "must be unique",
            );
        }
        if device_names.contains(mount.name.as_str()) {
            errors.invalid(
                path.child("name"),
                mount.name.as_str(),
                "must not already exist in volumeDevices",
            );
        }
        if device_paths.contains(mount.mount_path.as_str()) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.invalid(path.child("mountPath"), mount.mount_path.as_str(), detail);
        }
        // Upstream leaves the index out of the paths of what follows.
        validate_sub_path(errors, mount, path, list);
        validate_propagation(errors, mount, container, list.child("mountPropagation"));
        validate_recursive_read_only(errors, mount, list.child("recursiveReadOnly"));
    }
}

fn validate_sub_path(errors: &mut Errors, mount: &VolumeMount, path: Path<'_>, list: Path<'_>) {
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
    if !sub_path.is_empty() {
        errors.invalid_each(
            list.child("subPath"),
            sub_path,
            names::local_descending_path(sub_path),
        );
    }
    if !expression.is_empty() {
        if !sub_path.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(path.child("subPathExpr"), expression, detail);
        }
        errors.invalid_each(
            list.child("subPathExpr"),
            expression,
            names::local_descending_path(expression),
        );
    }
}

fn validate_propagation(errors: &mut Errors, mount: &VolumeMount, container: &Container, path: Path<'_>) {
    const SUPPORTED: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
    let Some(propagation) = mount.mount_propagation.as_deref() else {
        return;
    };
    if !SUPPORTED.contains(&propagation) {
        errors.not_supported(path, propagation, &SUPPORTED);
    }
    let privileged = container
        .security_context
        .as_ref()
        .and_then(|context| context.privileged)
        == Some(true);
    if propagation == "Bidirectional" && !privileged {
        errors.forbidden(
            path,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}

fn validate_recursive_read_only(errors: &mut Errors, mount: &VolumeMount, path: Path<'_>) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount
                .mount_propagation
                .as_deref()
                .is_some_and(|propagation| propagation != "None")
            {
                errors.forbidden(
                    path,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        Some(other) => errors.not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

pub(super) fn validate_devices(
    errors: &mut Errors,
    container: &Container,
    volumes: &VolumeNames<'_>,
    list: Path<'_>,
) {
    let mut paths = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mount_names: BTreeSet<&str> = container
        .volume_mounts
        .iter()
        .map(|mount| mount.name.as_str())
        .collect();
    let mount_paths: BTreeSet<&str> = container
        .volume_mounts
        .iter()
        .map(|mount| mount.mount_path.as_str())
        .collect();
    for (index, device) in container.volume_devices.iter().enumerate() {
        let path = list.index(index);
        let (name, device_path) = (device.name.as_str(), device.device_path.as_str());
        if name.is_empty() {
            errors.required(path.child("name"), "");
        }
        if !name.is_empty() && !seen.insert(name) {
            errors.invalid(path.child("name"), name, "must be unique");
        }
        match volumes.is_claim(name) {
            Some(true) => {}
            Some(false) => {
                let detail =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(path.child("name"), name, detail);
            }
            None => errors.not_found(path.child("name"), name),
        }
        if device_path.is_empty() {
            errors.required(path.child("devicePath"), "");
        }
        if paths.contains(device_path) {
            errors.invalid(path.child("devicePath"), device_path, "must be unique");
        }
        if names::no_backsteps(device_path).is_some() {
            errors.invalid(
                path.child("devicePath"),
                device_path,
                "can not contain backsteps ('..')",
            );
        } else {
            paths.insert(device_path);
        }
        if mount_names.contains(name) {
            errors.invalid(path.child("name"), name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(device_path) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.invalid(path.child("devicePath"), device_path, detail);
        }
    }
}
