//! What this node refuses to run although the API admits it: the pod fails at once, with the reason a kubelet gives.

use pulselet_model::Pod;

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

/// The reason and message of a pod that cannot run here.
pub(crate) fn refusal(pod: &Pod) -> Option<(&'static str, String)> {
    let os = pod.spec.os.as_ref().map(|os| &*os.name);
    if let Some(os) = os.filter(|os| *os != "linux") {
        let message = format!("the pod asks for {os}, and this node runs linux");
        return Some(("PodOSNotSupported", message));
    }
    let security = pod.spec.security_context.as_ref()?;
    // Names may be written with slashes.
    let is_safe = |name: &str| SAFE_SYSCTLS.contains(&name.replace('/', ".").as_str());
    let mut sysctls = security.sysctls.iter().flatten();
    let unsafe_one = sysctls.find(|sysctl| !is_safe(&sysctl.name))?;
    let message = format!("forbidden sysctl: {:?} not allowlisted", unsafe_one.name);
    Some(("SysctlForbidden", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn foreign_systems_and_unsafe_settings_are_refused() {
        let reason = |spec: &Value| {
            let mut spec = spec.clone();
            spec["containers"] = json!([{"name": "app"}]);
            let pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec}));
            refusal(&pod.expect("a pod")).map(|(reason, message)| format!("{reason}: {message}"))
        };
        let sysctl = |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        assert_eq!(reason(&json!({})), None);
        assert_eq!(reason(&json!({"os": {"name": "linux"}})), None);
        assert_eq!(reason(&sysctl("net/ipv4/tcp_syncookies")), None);
        assert_eq!(
            reason(&sysctl("kernel.msgmax")).as_deref(),
            Some("SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted")
        );
        assert_eq!(
            reason(&json!({"os": {"name": "windows"}})).as_deref(),
            Some("PodOSNotSupported: the pod asks for windows, and this node runs linux")
        );
    }
}
