//! What a node refuses to run although the API admits it: the pod fails at once, with the reason a kubelet gives.
//!
//! The rules are functions of the manifest alone, so that a simulation refuses exactly what a node refuses.

use pulselet_model::{Pod, Shortage};

use crate::security::impossible;
use crate::unserved::unserved;

/// The system that nodes run.
const NODE_OS: &str = "linux";

/// Settings of the kernel that belong to a pod's own namespaces and cannot take anything from other pods: those that a
/// kubelet admits without being told to.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Why a pod cannot run on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRefusal {
    pub reason: RefusalReason,
    /// The path of the field that cannot be honoured.
    pub field: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    AppArmor,
    Evicted,
    NodeShutdown,
    OutOfCpu,
    OutOfEphemeralStorage,
    OutOfHugePages1Gi,
    OutOfHugePages2Mi,
    OutOfMemory,
    OutOfPods,
    PodFeatureUnsupported,
    PodOsNotSupported,
    SupplementalGroupsPolicyNotSupported,
    SysctlForbidden,
    UnexpectedAdmissionError,
}

impl RefusalReason {
    /// As the status of a pod has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AppArmor => "AppArmor",
            Self::Evicted => "Evicted",
            Self::NodeShutdown => "NodeShutdown",
            Self::OutOfCpu => "OutOfcpu",
            Self::OutOfEphemeralStorage => "OutOfephemeral-storage",
            Self::OutOfHugePages1Gi => "OutOfhugepages-1Gi",
            Self::OutOfHugePages2Mi => "OutOfhugepages-2Mi",
            Self::OutOfMemory => "OutOfmemory",
            Self::OutOfPods => "OutOfpods",
            Self::PodFeatureUnsupported => "PodFeatureUnsupported",
            Self::PodOsNotSupported => "PodOSNotSupported",
            Self::SupplementalGroupsPolicyNotSupported => "SupplementalGroupsPolicyNotSupported",
            Self::SysctlForbidden => "SysctlForbidden",
            Self::UnexpectedAdmissionError => "UnexpectedAdmissionError",
        }
    }
}

impl PodRefusal {
    /// The message as a status has it: with the field, unless a kubelet's message is known to name what is meant.
    pub fn status_message(&self) -> String {
        match self.reason {
            RefusalReason::Evicted
            | RefusalReason::NodeShutdown
            | RefusalReason::OutOfCpu
            | RefusalReason::OutOfEphemeralStorage
            | RefusalReason::OutOfHugePages1Gi
            | RefusalReason::OutOfHugePages2Mi
            | RefusalReason::OutOfMemory
            | RefusalReason::OutOfPods
            | RefusalReason::PodOsNotSupported
            | RefusalReason::SysctlForbidden
            | RefusalReason::UnexpectedAdmissionError => self.message.clone(),
            RefusalReason::AppArmor
            | RefusalReason::PodFeatureUnsupported
            | RefusalReason::SupplementalGroupsPolicyNotSupported => {
                format!("{}: {}", self.field, self.message)
            }
        }
    }
}

/// The first reason for which no node runs the pod; `None` if a node runs it.
pub fn refusal(pod: &Pod) -> Option<PodRefusal> {
    foreign_system(pod)
        .or_else(|| unsafe_sysctl(pod))
        .or_else(|| impossible(pod))
        .or_else(|| unserved(pod))
}

/// The refusal of a pod that requests more than its node has left, in a kubelet's words.
pub fn out_of(shortage: &Shortage) -> PodRefusal {
    let Shortage {
        resource,
        requested,
        used,
        capacity,
    } = shortage;
    let reason = match resource.as_str() {
        "cpu" => RefusalReason::OutOfCpu,
        "memory" => RefusalReason::OutOfMemory,
        "ephemeral-storage" => RefusalReason::OutOfEphemeralStorage,
        "pods" => RefusalReason::OutOfPods,
        "hugepages-2Mi" => RefusalReason::OutOfHugePages2Mi,
        "hugepages-1Gi" => RefusalReason::OutOfHugePages1Gi,
        _ => RefusalReason::UnexpectedAdmissionError,
    };
    PodRefusal {
        reason,
        field: "spec".to_owned(),
        message: format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
    }
}

fn foreign_system(pod: &Pod) -> Option<PodRefusal> {
    let os = &pod.spec.os.as_ref()?.name;
    (os != NODE_OS).then(|| PodRefusal {
        reason: RefusalReason::PodOsNotSupported,
        field: "spec.os.name".to_owned(),
        message: format!("the pod asks for {os}, and this node runs {NODE_OS}"),
    })
}

fn unsafe_sysctl(pod: &Pod) -> Option<PodRefusal> {
    let sysctls = pod.spec.security_context.as_ref()?.sysctls.as_ref()?;
    // Names may be written with slashes.
    let is_safe = |name: &str| SAFE_SYSCTLS.contains(&name.replace('/', ".").as_str());
    let index = sysctls.iter().position(|sysctl| !is_safe(&sysctl.name))?;
    Some(PodRefusal {
        reason: RefusalReason::SysctlForbidden,
        field: format!("spec.securityContext.sysctls[{index}].name"),
        message: format!("forbidden sysctl: {:?} not allowlisted", sysctls[index].name),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(spec: &Value) -> Option<String> {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "app"}]);
        let pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec}));
        let refusal = refusal(&pod.expect("a pod"))?;
        let PodRefusal {
            reason,
            field,
            message,
        } = refusal;
        Some(format!("{field}: {}: {message}", reason.as_str()))
    }

    #[test]
    fn foreign_systems_and_unsafe_settings_are_refused() {
        let sysctl = |name: &str| {
            let sysctls =
                json!([{"name": "net/ipv4/tcp_syncookies", "value": "1"}, {"name": name, "value": "1"}]);
            json!({"securityContext": {"sysctls": sysctls}})
        };
        assert_eq!(refused(&json!({})), None);
        assert_eq!(refused(&json!({"os": {"name": "linux"}})), None);
        assert_eq!(refused(&sysctl("net.ipv4.tcp_rmem")), None);
        let message = "forbidden sysctl: \"kernel.msgmax\" not allowlisted";
        assert_eq!(
            refused(&sysctl("kernel.msgmax")),
            Some(format!(
                "spec.securityContext.sysctls[1].name: SysctlForbidden: {message}"
            ))
        );
        let message = "the pod asks for windows, and this node runs linux";
        assert_eq!(
            refused(&json!({"os": {"name": "windows"}})),
            Some(format!("spec.os.name: PodOSNotSupported: {message}"))
        );
    }
}
