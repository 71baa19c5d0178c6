//! Security contexts and resource limits in the runtime's terms.

use std::path::{Path, PathBuf};

use pulselet_cgroup::cpu_shares;
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::quantity::Amount;
use pulselet_model::{Container, Pod, pod_limits, pod_requests};
use pulselet_plan::{Ability, AppArmorProfile, app_armor_profile};
use pulselet_runtime::{AppArmor, Capabilities, Resources, Seccomp, SecurityContext, SecurityFeatures};

/// Where profiles of `localhostProfile` are looked for, below the data directory.
const SECCOMP_DIRECTORY: &str = "seccomp";
/// Microseconds of the CPU quota's period, as a kubelet sets it.
const CPU_PERIOD: u64 = 100_000;
/// The kernel's smallest quota, in microseconds.
const MIN_CPU_QUOTA: i64 = 1_000;

/// What of a pod's settings a runtime can honour.
pub(crate) fn abilities(features: SecurityFeatures) -> impl Fn(Ability) -> bool {
    move |ability| match ability {
        Ability::AppArmor => features.app_armor,
        Ability::Capabilities => features.capabilities,
        Ability::Seccomp => features.seccomp,
        Ability::ReadOnlyRoot => features.read_only_root,
        Ability::StrictGroups => features.strict_groups,
        Ability::RecursiveReadOnly => features.recursive_read_only,
        Ability::Sysctls => features.sysctls,
        Ability::HostIp => features.host_ip,
        Ability::UserNamespaces => features.user_namespaces,
    }
}

/// The container's own settings, where it has none the pod's.
pub(super) fn security(pod: &Pod, container: &Container, root: &Path) -> SecurityContext {
    let of_pod = pod.spec.security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let capabilities = own.capabilities.unwrap_or_default();
    let profile = own.seccomp_profile.or(of_pod.seccomp_profile);
    SecurityContext {
        privileged: own.privileged.unwrap_or(false),
        run_as_user: id(own.run_as_user.or(of_pod.run_as_user)),
        run_as_username: None,
        run_as_group: id(own.run_as_group.or(of_pod.run_as_group)),
        supplemental_groups: of_pod
            .supplemental_groups
            .unwrap_or_default()
            .into_iter()
            .chain(of_pod.fs_group)
            .filter_map(|group| id(Some(group)))
            .collect(),
        strict_groups: strict_groups(pod),
        read_only_root: own.read_only_root_filesystem.unwrap_or(false),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        capabilities: Capabilities {
            add: capabilities.add.unwrap_or_default(),
            drop: capabilities.drop.unwrap_or_default(),
        },
        seccomp: seccomp(profile, root),
        app_armor: app_armor(pod, container),
        unmasked_proc: own.proc_mount.as_deref() == Some("Unmasked"),
        masked_paths: None,
        read_only_paths: None,
    }
}

/// Whether only the pod's own groups count.
pub(super) fn strict_groups(pod: &Pod) -> bool {
    let security = pod.spec.security_context.as_ref();
    let policy = security.and_then(|security| security.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

fn app_armor(pod: &Pod, container: &Container) -> Option<AppArmor> {
    // The path is for refusals.
    let (profile, _) = app_armor_profile(pod, "", container)?;
    Some(match profile {
        AppArmorProfile::Unconfined => AppArmor::Unconfined,
        AppArmorProfile::RuntimeDefault => AppArmor::RuntimeDefault,
        AppArmorProfile::Localhost(name) => AppArmor::Localhost(name),
    })
}

pub(super) fn id(number: Option<i64>) -> Option<u32> {
    number.and_then(|number| u32::try_from(number).ok())
}

pub(super) fn seccomp(profile: Option<core::SeccompProfile>, root: &Path) -> Seccomp {
    let Some(profile) = profile else {
        return Seccomp::Unconfined;
    };
    match (profile.type_.as_str(), profile.localhost_profile) {
        ("RuntimeDefault", _) => Seccomp::RuntimeDefault,
        ("Localhost", Some(name)) => {
            Seccomp::Localhost(root.join(SECCOMP_DIRECTORY).join(PathBuf::from(name)))
        }
        _ => Seccomp::Unconfined,
    }
}

/// Shares from the requests (or the limit; the least there is without both, as a kubelet has it: beside a container that requests
/// something the others have no claim), quota and memory from the limits.
pub(super) fn resources(requirements: &core::ResourceRequirements) -> Resources {
    let limit = |name| nanos(requirements.limits.as_ref(), name);
    let request = |name| nanos(requirements.requests.as_ref(), name);
    let milli = |nanos: i128| i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX);
    let claimed = request("cpu").or(limit("cpu")).map_or(0, milli);
    let quota = limit("cpu").filter(|nanos| *nanos > 0).map(|nanos| {
        let period = i64::try_from(CPU_PERIOD).unwrap_or(i64::MAX);
        (milli(nanos).saturating_mul(period) / 1000).max(MIN_CPU_QUOTA)
    });
    Resources {
        cpu_shares: Some(cpu_shares(u64::try_from(claimed).unwrap_or(0))),
        cpu_quota: quota,
        cpu_period: quota.map(|_| CPU_PERIOD),
        memory_limit: limit("memory").and_then(|nanos| u64::try_from(nanos / 1_000_000_000).ok()),
        ..Resources::default()
    }
}

/// The limits of a pod as a whole, its overhead included: shares from what it requests, quota and memory where every
/// container has a limit, or where the pod names one for itself.
pub(crate) fn pod_resources(pod: &Pod) -> Resources {
    let spec = &pod.spec;
    let (requests, limits) = (pod_requests(spec), pod_limits(spec));
    let has = |resources: &core::ResourceRequirements, name| {
        nanos(resources.limits.as_ref(), name).is_some_and(|nanos| nanos > 0)
    };
    let is_limited = |name| {
        let mut all = spec.init_containers.iter().chain(&spec.containers);
        let by_pod = spec.resources.as_ref().is_some_and(|of_pod| has(of_pod, name));
        by_pod || all.all(|container| has(&container.resources, name))
    };
    let quota = is_limited("cpu").then(|| quota(limits.cpu_millis));
    Resources {
        cpu_shares: Some(cpu_shares(requests.cpu_millis)),
        cpu_quota: quota,
        cpu_period: quota.map(|_| CPU_PERIOD),
        memory_limit: is_limited("memory").then_some(limits.memory),
        ..Resources::default()
    }
}

fn quota(cpu_millis: u64) -> i64 {
    let micros = cpu_millis.saturating_mul(CPU_PERIOD) / 1000;
    i64::try_from(micros).unwrap_or(i64::MAX).max(MIN_CPU_QUOTA)
}

type Quantities =
    std::collections::BTreeMap<String, pulselet_model::openapi::apimachinery::pkg::api::resource::Quantity>;

/// Validation has seen that quantities can be read; one that cannot is no limit.
fn nanos(map: Option<&Quantities>, name: &str) -> Option<i128> {
    Amount::parse(&map?.get(name)?.0).ok().map(Amount::nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_become_quota_and_bytes() {
        let requirements = serde_json::from_value(json!({
            "limits": {"cpu": "250m", "memory": "64Mi"}, "requests": {"cpu": "100m"},
        }))
        .unwrap();
        let resources = resources(&requirements);
        assert_eq!(resources.cpu_quota, Some(25_000));
        assert_eq!(resources.cpu_shares, Some(102));
        assert_eq!(resources.memory_limit, Some(64 << 20));
        assert_eq!(
            super::resources(&core::ResourceRequirements::default()),
            Resources {
                cpu_shares: Some(pulselet_cgroup::MIN_SHARES),
                ..Resources::default()
            }
        );
    }

    #[test]
    fn a_pod_is_limited_as_far_as_all_of_its_containers_are() {
        let of = |spec: serde_json::Value| {
            let pod = json!({"metadata": {"name": "web"}, "spec": spec});
            pod_resources(&serde_json::from_value(pod).expect("a pod"))
        };
        let limited = json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}});
        let half = json!({"limits": {"memory": "64Mi"}});
        let both = of(json!({
            "containers": [{"name": "a", "resources": limited}, {"name": "b", "resources": limited}],
            "overhead": {"cpu": "100m", "memory": "1Mi"},
        }));
        assert_eq!((both.cpu_shares, both.cpu_quota), (Some(614), Some(110_000)));
        assert_eq!(both.memory_limit, Some(129 << 20));
        let mixed = of(
            json!({"containers": [{"name": "a", "resources": limited}, {"name": "b", "resources": half}]}),
        );
        assert_eq!((mixed.cpu_quota, mixed.memory_limit), (None, Some(128 << 20)));
        let plain = of(json!({"containers": [{"name": "a"}]}));
        assert_eq!((plain.cpu_shares, plain.memory_limit), (Some(2), None));
        let of_pod = of(json!({"containers": [{"name": "a"}], "resources": {"limits": {"memory": "32Mi"}}}));
        assert_eq!((of_pod.cpu_quota, of_pod.memory_limit), (None, Some(32 << 20)));
    }

    #[test]
    fn the_containers_own_settings_win() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]},
                "containers": [{"name": "app", "securityContext": {"runAsUser": 9, "allowPrivilegeEscalation": false}}],
            },
        }))
        .unwrap();
        let context = security(&pod, &pod.spec.containers[0], Path::new("/data"));
        assert_eq!((context.run_as_user, context.run_as_group), (Some(9), Some(2)));
        assert_eq!(context.supplemental_groups, [4, 3]);
        assert!(context.no_new_privs && !context.privileged);
        assert!(context.app_armor.is_none() && !context.strict_groups);
    }

    #[test]
    fn profiles_and_the_policy_of_groups_are_passed_on() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "securityContext": {
                    "supplementalGroupsPolicy": "Strict", "appArmorProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{"name": "app"}],
            },
        }))
        .unwrap();
        let context = security(&pod, &pod.spec.containers[0], Path::new("/data"));
        assert!(context.strict_groups);
        assert_eq!(context.app_armor, Some(AppArmor::RuntimeDefault));
    }
}
