//! Security contexts of Pods and containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;

use super::{Context, names};
use crate::field::{Errors, Path};
use crate::pod::PodSpec;

/// The longest path Linux takes, without its terminating zero.
const MAX_PROFILE_BYTES: usize = 4095;

pub(super) fn validate_container(
    errors: &mut Errors,
    security: Option<&core::SecurityContext>,
    path: Path<'_>,
    context: &Context<'_>,
) {
    let Some(security) = security else { return };
    validate_id(errors, security.run_as_user, path.child("runAsUser"));
    validate_id(errors, security.run_as_group, path.child("runAsGroup"));
    if let Some(proc_mount) = security.proc_mount.as_deref() {
        let path = path.child("procMount");
        if !["Default", "Unmasked"].contains(&proc_mount) {
            errors.not_supported(path, proc_mount, &["Default", "Unmasked"]);
        }
        if proc_mount == "Unmasked" && context.spec.host_users != Some(false) {
            errors.invalid(path, proc_mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    validate_seccomp(
        errors,
        security.seccomp_profile.as_ref(),
        path.child("seccompProfile"),
    );
    validate_escalation(errors, security, path);
    validate_app_armor(
        errors,
        security.app_armor_profile.as_ref(),
        path.child("appArmorProfile"),
    );
}

fn validate_escalation(errors: &mut Errors, security: &core::SecurityContext, path: Path<'_>) {
    if security.allow_privilege_escalation != Some(false) {
        return;
    }
    let shown = || serde_json::to_value(security).unwrap_or_default();
    if security.privileged == Some(true) {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.invalid(path, shown(), detail);
    }
    let added = security
        .capabilities
        .as_ref()
        .and_then(|capabilities| capabilities.add.as_deref());
    for _ in added
        .unwrap_or_default()
        .iter()
        .filter(|capability| *capability == "CAP_SYS_ADMIN")
    {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
        errors.invalid(path, shown(), detail);
    }
}

pub(super) fn validate_pod(errors: &mut Errors, path: Path<'_>, context: &Context<'_>) {
    let Some(security) = &context.spec.security_context else {
        return;
    };
    validate_id(errors, security.fs_group, path.child("fsGroup"));
    validate_id(errors, security.run_as_user, path.child("runAsUser"));
    validate_id(errors, security.run_as_group, path.child("runAsGroup"));
    let groups = path.child("supplementalGroups");
    for (index, group) in security.supplemental_groups.iter().flatten().enumerate() {
        validate_id(errors, Some(*group), groups.index(index));
    }
    if context.spec.share_process_namespace == Some(true) && context.spec.host_pid {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(path.child("shareProcessNamespace"), true, detail);
    }
    validate_sysctls(errors, security, path.child("sysctls"), context);
    let choice = |errors: &mut Errors, field: &str, value: Option<&str>, supported: &[&str]| {
        if let Some(value) = value.filter(|value| !supported.contains(value)) {
            errors.not_supported(path.child(field), value, supported);
        }
    };
    let change_policy = security.fs_group_change_policy.as_deref();
    choice(
        errors,
        "fsGroupChangePolicy",
        change_policy,
        &["Always", "OnRootMismatch"],
    );
    validate_seccomp(
        errors,
        security.seccomp_profile.as_ref(),
        path.child("seccompProfile"),
    );
    validate_app_armor(
        errors,
        security.app_armor_profile.as_ref(),
        path.child("appArmorProfile"),
    );
    let groups_policy = security.supplemental_groups_policy.as_deref();
    choice(
        errors,
        "supplementalGroupsPolicy",
        groups_policy,
        &["Merge", "Strict"],
    );
    choice(
        errors,
        "seLinuxChangePolicy",
        security.se_linux_change_policy.as_deref(),
        &["MountOption", "Recursive"],
    );
}

fn validate_id(errors: &mut Errors, id: Option<i64>, path: Path<'_>) {
    if let Some(id) = id {
        for complaint in names::user_or_group_id(id) {
            errors.invalid(path, id, complaint);
        }
    }
}

fn validate_sysctls(
    errors: &mut Errors,
    security: &core::PodSecurityContext,
    path: Path<'_>,
    context: &Context<'_>,
) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in security.sysctls.iter().flatten().enumerate() {
        let index_path = path.index(index);
        let path = index_path.child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.required(path, "");
        } else if !names::is_sysctl_name(name) {
            let detail = "must have at most 253 characters and match regex \
                          ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.invalid(path, name, detail);
        } else if seen.contains(name) {
            errors.duplicate(path, name);
        }
        if !context.tolerated.host_sysctls
            && let Some(detail) = host_sysctl(name, context.spec)
        {
            errors.invalid(path, name, detail);
        }
        seen.insert(name);
    }
}

/// Why a sysctl of a namespace cannot be set while that namespace is the host's.
fn host_sysctl(name: &str, spec: &PodSpec) -> Option<&'static str> {
    let dotted = name.replace('/', ".");
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."]
        .iter()
        .any(|prefix| dotted.starts_with(prefix))
        || dotted == "kernel.sem";
    if spec.host_network && dotted.starts_with("net.") {
        Some("may not be specified when 'hostNetwork' is true")
    } else if spec.host_ipc && ipc {
        Some("may not be specified when 'hostIPC' is true")
    } else {
        None
    }
}

/// Whether a spec sets a sysctl of a namespace that it shares with the host.
pub(super) fn uses_host_sysctls(spec: &PodSpec) -> bool {
    let security = spec.security_context.as_ref();
    let sysctls = security.and_then(|security| security.sysctls.as_deref());
    let mut sysctls = sysctls.unwrap_or_default().iter();
    sysctls.any(|sysctl| host_sysctl(&sysctl.name, spec).is_some())
}

fn validate_seccomp(errors: &mut Errors, profile: Option<&core::SeccompProfile>, path: Path<'_>) {
    let Some(profile) = profile else { return };
    match profile.type_.as_str() {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => errors.required(path.child("type"), "type is required when seccompProfile is set"),
        other => errors.not_supported(
            path.child("type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
    let path = path.child("localhostProfile");
    match (&profile.localhost_profile, profile.type_.as_str()) {
        (None, "Localhost") => errors.required(path, "must be set when seccomp type is Localhost"),
        (Some(file), "Localhost") => errors.invalid_each(path, file, names::local_descending_path(file)),
        (Some(_), _) => {
            let shown = serde_json::to_value(profile).unwrap_or_default();
            errors.invalid(path, shown, "can only be set when seccomp type is Localhost");
        }
        (None, _) => {}
    }
}

fn validate_app_armor(errors: &mut Errors, profile: Option<&core::AppArmorProfile>, path: Path<'_>) {
    const NEEDED: &str = "must be set when AppArmor type is Localhost";
    let Some(profile) = profile else { return };
    let name_path = path.child("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None) => errors.required(name_path, NEEDED),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                errors.invalid(name_path, name, "must not be padded with whitespace");
            } else if name.is_empty() {
                errors.required(name_path, NEEDED);
            }
            if name.len() > MAX_PROFILE_BYTES {
                errors.too_long(name_path, MAX_PROFILE_BYTES);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.invalid(name_path, name, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(path.child("type"), "type is required when appArmorProfile is set"),
        (other, _) => {
            errors.not_supported(
                path.child("type"),
                other,
                &["Localhost", "RuntimeDefault", "Unconfined"],
            );
        }
    }
}

/// What only the other operating system has.
pub(super) fn validate_os(errors: &mut Errors, spec_path: Path<'_>, context: &Context<'_>) {
    let Some(os) = &context.spec.os else { return };
    match os.name.as_str() {
        "" => errors.required(spec_path.child("os").child("name"), ""),
        "linux" => forbid_windows_options(errors, spec_path, context),
        "windows" => forbid_linux_options(errors, spec_path, context),
        other => errors.not_supported(spec_path.child("os"), other, &["linux", "windows"]),
    }
}

/// Visits containers in the order upstream does: init containers, containers.
fn for_each_security_context(
    spec_path: Path<'_>,
    context: &Context<'_>,
    mut visit: impl FnMut(&core::SecurityContext, Path<'_>),
) {
    let lists = [
        ("initContainers", &context.spec.init_containers),
        ("containers", &context.spec.containers),
    ];
    for (field, containers) in lists {
        let list = spec_path.child(field);
        for (index, container) in containers.iter().enumerate() {
            let path = list.index(index);
            if let Some(security) = &container.security_context {
                visit(security, path.child("securityContext"));
            }
        }
    }
}

fn forbid_windows_options(errors: &mut Errors, spec_path: Path<'_>, context: &Context<'_>) {
    const DETAIL: &str = "windows options cannot be set for a linux pod";
    let pod = context.spec.security_context.as_ref();
    if pod.is_some_and(|security| security.windows_options.is_some()) {
        errors.forbidden(spec_path.child("securityContext").child("windowsOptions"), DETAIL);
    }
    for_each_security_context(spec_path, context, |security, path| {
        if security.windows_options.is_some() {
            errors.forbidden(path.child("windowsOptions"), DETAIL);
        }
    });
}

fn forbid_linux_options(errors: &mut Errors, spec_path: Path<'_>, context: &Context<'_>) {
    const DETAIL: &str = "cannot be set for a windows pod";
    let spec = context.spec;
    let security_path = spec_path.child("securityContext");
    let security = spec.security_context.clone().unwrap_or_default();
    let fields = [
        (
            security_path.child("appArmorProfile"),
            security.app_armor_profile.is_some(),
        ),
        (
            security_path.child("seLinuxOptions"),
            security.se_linux_options.is_some(),
        ),
        (spec_path.child("hostUsers"), spec.host_users.is_some()),
        (spec_path.child("hostPID"), spec.host_pid),
        (spec_path.child("hostIPC"), spec.host_ipc),
        (
            security_path.child("seccompProfile"),
            security.seccomp_profile.is_some(),
        ),
        (security_path.child("fsGroup"), security.fs_group.is_some()),
        (
            security_path.child("fsGroupChangePolicy"),
            security.fs_group_change_policy.is_some(),
        ),
        (
            security_path.child("sysctls"),
            security.sysctls.is_some_and(|sysctls| !sysctls.is_empty()),
        ),
        (
            spec_path.child("shareProcessNamespace"),
            spec.share_process_namespace.is_some(),
        ),
        (security_path.child("runAsUser"), security.run_as_user.is_some()),
        (security_path.child("runAsGroup"), security.run_as_group.is_some()),
        (
            security_path.child("supplementalGroups"),
            security.supplemental_groups.is_some(),
        ),
        (
            security_path.child("supplementalGroupsPolicy"),
            security.supplemental_groups_policy.is_some(),
        ),
        (
            security_path.child("seLinuxChangePolicy"),
            security.se_linux_change_policy.is_some(),
        ),
    ];
    for (path, _) in fields.into_iter().filter(|(_, set)| *set) {
        errors.forbidden(path, DETAIL);
    }
    for_each_security_context(spec_path, context, |security, path| {
        let fields = [
            ("appArmorProfile", security.app_armor_profile.is_some()),
            ("seLinuxOptions", security.se_linux_options.is_some()),
            ("seccompProfile", security.seccomp_profile.is_some()),
            ("capabilities", security.capabilities.is_some()),
            (
                "readOnlyRootFilesystem",
                security.read_only_root_filesystem.is_some(),
            ),
            ("privileged", security.privileged.is_some()),
            (
                "allowPrivilegeEscalation",
                security.allow_privilege_escalation.is_some(),
            ),
            ("procMount", security.proc_mount.is_some()),
            ("runAsUser", security.run_as_user.is_some()),
            ("runAsGroup", security.run_as_group.is_some()),
        ];
        for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
            errors.forbidden(path.child(field), DETAIL);
        }
    });
}
