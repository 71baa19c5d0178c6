//! What a pod asks of a node's confinement, and the first of it that a node does not have.
//!
//! What always holds: no setting is left out silently. What no runtime can do (`impossible`) is refused everywhere, also
//! by a simulation. What depends on the runtime is an [`Ability`]: a node refuses a pod that asks for one its runtime does
//! not have ([`refusal_without`]), and a single container of a pod that it has already ([`container_refusal`]), as an
//! ephemeral one that came later.
//!
//! A setting that asks for nothing more than there is anyway, as a profile `Unconfined`, is never refused.

use std::net::IpAddr;

use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::{Container, Pod, PodSpec};

use crate::refusal::{PodRefusal, RefusalReason};

/// The old way to name a container's profile: this, and the container's name.
const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Something that a runtime has or has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    AppArmor,
    Capabilities,
    Seccomp,
    ReadOnlyRoot,
    StrictGroups,
    RecursiveReadOnly,
    Sysctls,
    HostIp,
    UserNamespaces,
}

/// How a volume's mount wants what is mounted below it: `recursiveReadOnly`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecursiveReadOnly {
    Disabled,
    IfPossible,
    Enabled,
}

impl RecursiveReadOnly {
    /// A value that is not known is the strictest: it is honoured or refused, not passed over.
    pub fn read(mount: &core::VolumeMount) -> Self {
        match mount.recursive_read_only.as_deref() {
            None | Some("" | "Disabled") => Self::Disabled,
            Some("IfPossible") => Self::IfPossible,
            Some(_) => Self::Enabled,
        }
    }

    /// Whether the mount is made so. `possible` is whether the runtime can.
    pub const fn resolve(self, possible: bool) -> bool {
        match self {
            Self::Disabled => false,
            Self::IfPossible => possible,
            Self::Enabled => true,
        }
    }
}

/// The `appArmorProfile` that applies to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppArmorProfile {
    Unconfined,
    RuntimeDefault,
    /// The name of a profile on the host.
    Localhost(String),
}

/// The container's own profile, else that of its annotation, else the pod's; `None` if nobody says anything. With the path
/// of the field that says it.
pub fn app_armor_profile(pod: &Pod, path: &str, container: &Container) -> Option<(AppArmorProfile, String)> {
    let field = |profile: &core::AppArmorProfile, owner: &str| {
        let profile = match (profile.type_.as_str(), &profile.localhost_profile) {
            ("Unconfined", _) => AppArmorProfile::Unconfined,
            ("Localhost", Some(name)) => AppArmorProfile::Localhost(name.clone()),
            // Admission lets nothing else through; the default confines the most.
            _ => AppArmorProfile::RuntimeDefault,
        };
        (profile, format!("{owner}.securityContext.appArmorProfile"))
    };
    let own = container.security_context.as_ref();
    if let Some(profile) = own.and_then(|own| own.app_armor_profile.as_ref()) {
        return Some(field(profile, path));
    }
    let annotations = pod.metadata.annotations.as_ref();
    let name = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
    if let Some(text) = annotations.and_then(|annotations| annotations.get(&name)) {
        let profile = match (text.as_str(), text.strip_prefix("localhost/")) {
            ("unconfined", _) => AppArmorProfile::Unconfined,
            (_, Some(profile)) => AppArmorProfile::Localhost(profile.to_owned()),
            (_, None) => AppArmorProfile::RuntimeDefault,
        };
        return Some((profile, format!("metadata.annotations[{name}]")));
    }
    let of_pod = pod.spec.security_context.as_ref()?;
    let profile = of_pod.app_armor_profile.as_ref()?;
    Some(field(profile, "spec"))
}

/// The first setting that no runtime of ours honours.
pub(crate) fn impossible(pod: &Pod) -> Option<PodRefusal> {
    impossible_of_pod(&pod.spec).or_else(|| {
        first_of_containers(pod, |path, container| {
            impossible_of_container(&pod.spec, path, container)
        })
    })
}

/// The first setting of a pod that needs an ability its node does not have; `None` if all of it can be honoured.
pub fn refusal_without(pod: &Pod, has: impl Fn(Ability) -> bool) -> Option<PodRefusal> {
    unmet(demands_of_pod(&pod.spec), &has).or_else(|| {
        first_of_containers(pod, |path, container| {
            unmet(demands_of_container(pod, path, container), &has)
        })
    })
}

/// The same for one container with what its pod asks for, and with what no runtime honours.
pub fn container_refusal(pod: &Pod, name: &str, has: impl Fn(Ability) -> bool) -> Option<PodRefusal> {
    let of_pod = impossible_of_pod(&pod.spec).or_else(|| unmet(demands_of_pod(&pod.spec), &has));
    of_pod.or_else(|| {
        first_of_containers(pod, |path, container| {
            if container.name != name {
                return None;
            }
            impossible_of_container(&pod.spec, path, container)
                .or_else(|| unmet(demands_of_container(pod, path, container), &has))
        })
    })
}

/// What `visit` says of the first container of which it says something. Init containers come first, ephemeral ones last.
fn first_of_containers(
    pod: &Pod,
    visit: impl Fn(&str, &Container) -> Option<PodRefusal>,
) -> Option<PodRefusal> {
    let spec = &pod.spec;
    let lasting = [
        ("initContainers", &spec.init_containers),
        ("containers", &spec.containers),
    ];
    for (list, containers) in lasting {
        for (index, container) in containers.iter().enumerate() {
            let said = visit(&format!("spec.{list}[{index}]"), container);
            if said.is_some() {
                return said;
            }
        }
    }
    let ephemeral = spec.ephemeral_containers.iter().enumerate();
    ephemeral
        .map(|(index, container)| {
            visit(
                &format!("spec.ephemeralContainers[{index}]"),
                &container.to_container(),
            )
        })
        .find_map(|said| said)
}

fn unsupported(field: String, message: &str) -> PodRefusal {
    PodRefusal {
        reason: RefusalReason::PodFeatureUnsupported,
        field,
        message: message.to_owned(),
    }
}

const NO_SELINUX: &str =
    "this node sets no SELinux labels; leave the field out, or run the pod on a node that does";
const NO_WINDOWS: &str = "the node runs Linux, where Windows options mean nothing; leave the field out";

/// Whether a label would separate the pod from anything. The lowest level without a category, `s0`, is what everything has
/// where nobody sets labels.
fn wants_a_label(options: &core::SELinuxOptions) -> bool {
    let core::SELinuxOptions {
        level,
        role,
        type_,
        user,
    } = options;
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let is_lowest = matches!(level.as_deref(), None | Some("" | "s0"));
    !is_lowest || is_set(role) || is_set(type_) || is_set(user)
}

fn impossible_of_pod(spec: &PodSpec) -> Option<PodRefusal> {
    if spec.host_users == Some(false) {
        let of_host = [
            ("spec.hostNetwork", spec.host_network),
            ("spec.hostPID", spec.host_pid),
            ("spec.hostIPC", spec.host_ipc),
        ];
        if let Some((field, _)) = of_host.into_iter().find(|(_, set)| *set) {
            let message = "a pod with hostUsers false has namespaces of its own; leave one of the two out";
            return Some(unsupported(field.to_owned(), message));
        }
    }
    let security = spec.security_context.as_ref()?;
    let path = |field: &str| format!("spec.securityContext.{field}");
    if security.se_linux_options.as_ref().is_some_and(wants_a_label) {
        return Some(unsupported(path("seLinuxOptions"), NO_SELINUX));
    }
    if security.se_linux_change_policy.is_some() {
        return Some(unsupported(path("seLinuxChangePolicy"), NO_SELINUX));
    }
    if security.windows_options.is_some() {
        return Some(unsupported(path("windowsOptions"), NO_WINDOWS));
    }
    None
}

fn impossible_of_container(spec: &PodSpec, owner: &str, container: &Container) -> Option<PodRefusal> {
    let security = container.security_context.as_ref()?;
    let path = |field: &str| format!("{owner}.securityContext.{field}");
    if security.se_linux_options.as_ref().is_some_and(wants_a_label) {
        return Some(unsupported(path("seLinuxOptions"), NO_SELINUX));
    }
    if security.windows_options.is_some() {
        return Some(unsupported(path("windowsOptions"), NO_WINDOWS));
    }
    let message = match (security.proc_mount.as_deref(), spec.host_users) {
        (None | Some("Default"), _) | (Some("Unmasked"), Some(false)) => return None,
        (Some("Unmasked"), _) => {
            "an unmasked /proc needs a user namespace; set hostUsers to false, or use Default"
        }
        (Some(_), _) => "there is no such way to mount /proc; use Default",
    };
    Some(unsupported(path("procMount"), message))
}

/// Abilities and the fields that ask for them, in the order in which they are looked at.
type Demands = Vec<(Ability, String)>;

/// The refusal of the first that is not met.
fn unmet(demands: Demands, has: &impl Fn(Ability) -> bool) -> Option<PodRefusal> {
    let (ability, field) = demands.into_iter().find(|(ability, _)| !has(*ability))?;
    let (reason, message) = ability.refusal();
    Some(PodRefusal {
        reason,
        field,
        message: message.to_owned(),
    })
}

fn demands_of_pod(spec: &PodSpec) -> Demands {
    let mut demands = Vec::new();
    if spec.host_users == Some(false) {
        demands.push((Ability::UserNamespaces, "spec.hostUsers".to_owned()));
    }
    let Some(security) = &spec.security_context else {
        return demands;
    };
    let mut ask = |ability, field: &str| demands.push((ability, format!("spec.securityContext.{field}")));
    if security.sysctls.as_ref().is_some_and(|list| !list.is_empty()) {
        ask(Ability::Sysctls, "sysctls");
    }
    let policy = security.supplemental_groups_policy.as_deref();
    if policy.is_some_and(|policy| policy != "Merge") {
        ask(Ability::StrictGroups, "supplementalGroupsPolicy");
    }
    demands
}

fn demands_of_container(pod: &Pod, owner: &str, container: &Container) -> Demands {
    let mut demands = Vec::new();
    match app_armor_profile(pod, owner, container) {
        Some((AppArmorProfile::RuntimeDefault | AppArmorProfile::Localhost(_), field)) => {
            demands.push((Ability::AppArmor, field));
        }
        Some((AppArmorProfile::Unconfined, _)) | None => {}
    }
    demands.extend(seccomp_field(pod, owner, container).map(|field| (Ability::Seccomp, field)));
    let security = container.security_context.as_ref();
    let changes = security.and_then(|security| security.capabilities.as_ref());
    let is_set = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    if changes.is_some_and(|changes| is_set(&changes.add) || is_set(&changes.drop)) {
        demands.push((
            Ability::Capabilities,
            format!("{owner}.securityContext.capabilities"),
        ));
    }
    if security.and_then(|security| security.read_only_root_filesystem) == Some(true) {
        let field = format!("{owner}.securityContext.readOnlyRootFilesystem");
        demands.push((Ability::ReadOnlyRoot, field));
    }
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        if RecursiveReadOnly::read(mount) == RecursiveReadOnly::Enabled {
            let field = format!("{owner}.volumeMounts[{index}].recursiveReadOnly");
            demands.push((Ability::RecursiveReadOnly, field));
        }
    }
    for (index, port) in container.ports.iter().enumerate() {
        let address = port.host_ip.parse::<IpAddr>();
        let everywhere = port.host_ip.is_empty() || address.is_ok_and(|address| address.is_unspecified());
        if port.host_port != 0 && !everywhere {
            demands.push((Ability::HostIp, format!("{owner}.ports[{index}].hostIP")));
        }
    }
    demands
}

/// Where a filter of system calls is asked for; `None` if none is.
fn seccomp_field(pod: &Pod, owner: &str, container: &Container) -> Option<String> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.security_context.as_ref();
    let own = own.and_then(|own| own.seccomp_profile.as_ref());
    let (profile, owner) = match own {
        Some(profile) => (profile, owner),
        None => (of_pod?.seccomp_profile.as_ref()?, "spec"),
    };
    (profile.type_ != "Unconfined").then(|| format!("{owner}.securityContext.seccompProfile"))
}

impl Ability {
    /// What a node says that does not have it, and what can be done.
    const fn refusal(self) -> (RefusalReason, &'static str) {
        let message = match self {
            Self::AppArmor => {
                return (
                    RefusalReason::AppArmor,
                    "Cannot enforce AppArmor: this node applies no profiles, because its kernel or its runtime does \
                     not; set the type to Unconfined, or use a host with AppArmor and its apparmor_parser",
                );
            }
            Self::StrictGroups => {
                return (
                    RefusalReason::SupplementalGroupsPolicyNotSupported,
                    "SupplementalGroupsPolicy=Strict is not supported in this node; use Merge, or a runtime that has it",
                );
            }
            Self::Capabilities => {
                "the node's runtime does not change capabilities; leave the field out, or use --runtime oci"
            }
            Self::Seccomp => {
                "the node's runtime does not filter system calls; set the type to Unconfined, or use --runtime oci"
            }
            Self::ReadOnlyRoot => {
                "the node's runtime gives containers the host's files; leave the field out, or use --runtime oci"
            }
            Self::RecursiveReadOnly => {
                "the node's runtime cannot make the mounts below a volume read-only; use IfPossible, or --runtime oci"
            }
            Self::Sysctls => {
                "the node's runtime has no namespaces whose settings could be changed; leave the field out, or use \
                 --runtime oci"
            }
            Self::UserNamespaces => {
                "this node makes no user namespaces, because its kernel, the file system of its data directory or its \
                 runtime does not; leave hostUsers out, or use --runtime oci on Linux 6.3 or newer"
            }
            Self::HostIp => {
                "the node's runtime does not choose the addresses that containers listen on; leave the field out, or \
                 use --runtime oci"
            }
        };
        (RefusalReason::PodFeatureUnsupported, message)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: &Value, of_pod: &Value, own: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {
                "securityContext": of_pod,
                "containers": [{"name": "app", "securityContext": own}],
                "ephemeralContainers": [{"name": "debug", "securityContext": {"procMount": "Unmasked"}}],
            },
        }))
        .expect("a pod")
    }

    #[test]
    fn a_label_that_separates_nothing_is_not_refused() {
        let refused = |options: &Value| {
            let context = json!({"seLinuxOptions": options});
            let of_pod = impossible_of_pod(&pod(&json!({}), &context, &json!({})).spec).is_some();
            let pod = pod(&json!({}), &json!({}), &context);
            let of_container = impossible_of_container(&pod.spec, "c", &pod.spec.containers[0]).is_some();
            assert_eq!(of_pod, of_container, "{options}");
            of_pod
        };
        assert!(!refused(&json!({"level": "s0"})) && !refused(&json!({})));
        assert!(refused(&json!({"level": "s0:c1"})) && refused(&json!({"level": "s0", "type": "t"})));
    }

    #[test]
    fn the_nearest_profile_applies() {
        let profile =
            |name: &str| json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": name}});
        let old = json!({"container.apparmor.security.beta.kubernetes.io/app": "localhost/old"});
        let other = json!({"container.apparmor.security.beta.kubernetes.io/other": "localhost/old"});
        let found = |annotations: &Value, own: &Value| {
            let pod = pod(annotations, &profile("of-pod"), own);
            app_armor_profile(&pod, "spec.containers[0]", &pod.spec.containers[0])
        };
        let named = |name: &str| AppArmorProfile::Localhost(name.to_owned());
        let path = "spec.containers[0].securityContext.appArmorProfile".to_owned();
        assert_eq!(found(&old, &profile("own")), Some((named("own"), path)));
        let path = "metadata.annotations[container.apparmor.security.beta.kubernetes.io/app]".to_owned();
        assert_eq!(found(&old, &json!({})), Some((named("old"), path)));
        let path = "spec.securityContext.appArmorProfile".to_owned();
        assert_eq!(found(&other, &json!({})), Some((named("of-pod"), path)));
    }

    #[test]
    fn a_container_is_judged_with_its_pod_and_without_its_siblings() {
        let field = |pod: &Pod, name: &str| {
            let refusal = container_refusal(pod, name, |_| false);
            refusal.map(|refusal| refusal.field)
        };
        let plain = pod(&json!({}), &json!({}), &json!({}));
        assert_eq!(field(&plain, "app"), None);
        let unmasked = "spec.ephemeralContainers[0].securityContext.procMount";
        assert_eq!(field(&plain, "debug").as_deref(), Some(unmasked));
        let strict = pod(
            &json!({}),
            &json!({"supplementalGroupsPolicy": "Strict"}),
            &json!({}),
        );
        let policy = "spec.securityContext.supplementalGroupsPolicy";
        assert_eq!(field(&strict, "app").as_deref(), Some(policy));
    }

    #[test]
    fn an_unmasked_proc_and_the_hosts_namespaces_depend_on_the_pods_users() {
        let refused = |spec: &Value| {
            let mut spec = spec.clone();
            spec["containers"] =
                json!([{"name": "app", "securityContext": {"procMount": spec["procMount"]}}]);
            spec.as_object_mut().expect("an object").remove("procMount");
            let pod =
                serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).expect("a pod");
            impossible(&pod).map(|refusal| refusal.field)
        };
        let proc_mount = Some("spec.containers[0].securityContext.procMount".to_owned());
        assert_eq!(refused(&json!({"procMount": "Unmasked"})), proc_mount);
        assert_eq!(
            refused(&json!({"procMount": "Unmasked", "hostUsers": true})),
            proc_mount
        );
        assert_eq!(
            refused(&json!({"procMount": "Weird", "hostUsers": false})),
            proc_mount
        );
        assert_eq!(
            refused(&json!({"procMount": "Unmasked", "hostUsers": false})),
            None
        );
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            assert_eq!(refused(&json!({"hostUsers": true, field: true})), None);
            let found = refused(&json!({"hostUsers": false, field: true}));
            assert_eq!(found, Some(format!("spec.{field}")));
        }
    }

    #[test]
    fn a_possible_tree_is_made_read_only() {
        let read = |text: &str| {
            let mount = json!({"name": "v", "mountPath": "/v", "recursiveReadOnly": text});
            RecursiveReadOnly::read(&serde_json::from_value(mount).expect("a mount"))
        };
        assert!(read("IfPossible").resolve(true) && !read("IfPossible").resolve(false));
        assert!(read("Enabled").resolve(true) && !read("Disabled").resolve(true));
    }
}
