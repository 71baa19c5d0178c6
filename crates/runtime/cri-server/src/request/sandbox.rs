//! Sandboxes as they are asked for.

use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use pulselet_cri_wire::v1;
use pulselet_runtime::{Dns, PodIdentity, PortMapping, Protocol, Resources, SandboxConfig};

use super::namespaces;
use super::resources::resources;
use super::security::{Users, seccomp};
use crate::refusal::RequestError;
use crate::stored;

pub(crate) fn sandbox(config: &v1::PodSandboxConfig) -> Result<SandboxConfig, RequestError> {
    let metadata = config
        .metadata
        .as_ref()
        .ok_or(RequestError::Missing { field: "metadata" })?;
    let linux = config.linux.clone().unwrap_or_default();
    let security = linux.security_context.clone().unwrap_or_default();
    let options = security.namespace_options.clone().unwrap_or_default();
    let namespaces = namespaces::of_sandbox(&options)?;
    let users = Users::of_sandbox(&security)?;
    let cgroup_parent = cgroup_parent(&linux.cgroup_parent)?;
    Ok(SandboxConfig {
        pod: identity(metadata)?,
        attempt: metadata.attempt,
        hostname: if namespaces.host_network {
            String::new()
        } else {
            hostname(&config.hostname)?
        },
        // Refused where it is asked for: there is one way to run a pod here.
        runtime_handler: String::new(),
        log_directory: log_directory(&config.log_directory)?,
        dns: config.dns_config.as_ref().and_then(dns),
        port_mappings: port_mappings(&config.port_mappings)?,
        namespaces,
        sysctls: linux.sysctls.clone(),
        privileged: security.privileged,
        run_as_user: users.user,
        run_as_group: users.group,
        supplemental_groups: users.supplemental_groups,
        strict_groups: users.strict_groups,
        seccomp: seccomp(security.seccomp.as_ref())?,
        // A parent that the client names has the pod's limits already: the client sets and changes them there.
        resources: match (&cgroup_parent, &linux.resources) {
            (None, Some(given)) => resources(given)?,
            (None, None) | (Some(_), _) => Resources::default(),
        },
        cgroup_parent,
        labels: std::collections::BTreeMap::new(),
        annotations: stored::sandbox_annotations(config),
    })
}

/// Names and uids become names of files: no separators, no way up.
fn identity(metadata: &v1::PodSandboxMetadata) -> Result<PodIdentity, RequestError> {
    for (field, text) in [
        ("metadata.name", &metadata.name),
        ("metadata.namespace", &metadata.namespace),
        ("metadata.uid", &metadata.uid),
    ] {
        if text.is_empty() {
            return Err(RequestError::Missing { field });
        }
        if text.contains(['/', '\0']) || text == "." || text == ".." {
            return Err(RequestError::invalid(field, format!("{text:?} is not a name")));
        }
    }
    Ok(PodIdentity {
        uid: metadata.uid.clone(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
    })
}

/// The kernel takes names of 64 bytes.
fn hostname(name: &str) -> Result<String, RequestError> {
    if name.len() > 64 || name.contains(['\0', '\n', ' ', '\t']) {
        return Err(RequestError::invalid("hostname", format!("{name:?} is not one")));
    }
    Ok(name.to_owned())
}

fn log_directory(text: &str) -> Result<PathBuf, RequestError> {
    let path = PathBuf::from(text);
    if !text.is_empty() && !path.is_absolute() {
        return Err(RequestError::invalid(
            "log_directory",
            format!("{text:?} is not absolute"),
        ));
    }
    Ok(path)
}

/// Returns `None` if nothing is said: the host's settings apply.
fn dns(config: &v1::DnsConfig) -> Option<Dns> {
    let dns = Dns {
        servers: config.servers.clone(),
        searches: config.searches.clone(),
        options: config.options.clone(),
    };
    (dns != Dns::default()).then_some(dns)
}

/// Those with a port of the host; a kubelet lists the others too.
fn port_mappings(given: &[v1::PortMapping]) -> Result<Vec<PortMapping>, RequestError> {
    let on_host = given.iter().filter(|mapping| mapping.host_port != 0);
    on_host.map(port_mapping).collect()
}

fn port_mapping(mapping: &v1::PortMapping) -> Result<PortMapping, RequestError> {
    const FIELD: &str = "port_mappings";
    let port = |number: i32| {
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        port.ok_or_else(|| RequestError::invalid(FIELD, format!("{number} is not a port")))
    };
    let address = match mapping.host_ip.as_str() {
        "" => None,
        text => {
            let address: Result<IpAddr, _> = text.parse();
            let address =
                address.map_err(|_| RequestError::invalid(FIELD, format!("{text:?} is not an address")))?;
            Some(address).filter(|address| !address.is_unspecified())
        }
    };
    Ok(PortMapping {
        protocol: match v1::Protocol::try_from(mapping.protocol) {
            Ok(v1::Protocol::Tcp) => Protocol::Tcp,
            Ok(v1::Protocol::Udp) => Protocol::Udp,
            Ok(v1::Protocol::Sctp) => Protocol::Sctp,
            Err(_) => {
                let detail = format!("{} is not a protocol", mapping.protocol);
                return Err(RequestError::invalid(FIELD, detail));
            }
        },
        container_port: port(mapping.container_port)?,
        host_port: port(mapping.host_port)?,
        host_ip: address,
    })
}

/// A path from the root of the hierarchies on; `None` if it is the runtime's own choice.
fn cgroup_parent(text: &str) -> Result<Option<PathBuf>, RequestError> {
    let path = Path::new(text.trim_start_matches('/'));
    let is_plain = path
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    if !is_plain || text.contains('\0') {
        return Err(RequestError::invalid(
            "cgroup_parent",
            format!("{text:?} is not a cgroup"),
        ));
    }
    Ok(Some(path.to_owned()).filter(|path| !path.as_os_str().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut v1::PodSandboxConfig)) -> Result<SandboxConfig, String> {
        let mut config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "web".into(),
                uid: "u".into(),
                namespace: "default".into(),
                attempt: 2,
            }),
            ..v1::PodSandboxConfig::default()
        };
        change(&mut config);
        sandbox(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn a_plain_sandbox_has_what_it_was_asked_for() {
        let made = config(|config| {
            config.hostname = "web".into();
            config.dns_config = Some(v1::DnsConfig::default());
            config.port_mappings = vec![
                v1::PortMapping {
                    container_port: 80,
                    ..v1::PortMapping::default()
                },
                v1::PortMapping {
                    container_port: 80,
                    host_port: 8080,
                    host_ip: "0.0.0.0".into(),
                    ..v1::PortMapping::default()
                },
            ];
        })
        .expect("is allowed");
        assert_eq!((made.attempt, made.hostname.as_str(), made.dns), (2, "web", None));
        assert_eq!(made.port_mappings.len(), 1, "a port of the host is wanted");
        assert_eq!(made.port_mappings[0].host_ip, None);
    }

    #[test]
    fn limits_of_a_pod_are_its_parents_if_it_has_one() {
        let with = |parent: &str| {
            config(|config| {
                config.linux = Some(v1::LinuxPodSandboxConfig {
                    cgroup_parent: parent.to_owned(),
                    resources: Some(v1::LinuxContainerResources {
                        memory_limit_in_bytes: 7,
                        ..v1::LinuxContainerResources::default()
                    }),
                    ..v1::LinuxPodSandboxConfig::default()
                });
            })
        };
        let own = with("").expect("is allowed");
        assert_eq!((own.cgroup_parent, own.resources.memory_limit), (None, Some(7)));
        let below = with("/kubepods/pod1").expect("is allowed");
        assert_eq!(below.cgroup_parent.as_deref(), Some(Path::new("kubepods/pod1")));
        assert_eq!(below.resources.memory_limit, None);
        for wrong in ["/kubepods/../..", "..", "a/../b"] {
            assert!(with(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        let refused = |change: fn(&mut v1::PodSandboxConfig)| config(change).expect_err("was made wrong");
        assert_eq!(refused(|it| it.metadata = None), "metadata is missing");
        assert!(refused(|it| it.metadata.as_mut().unwrap().uid.clear()).starts_with("metadata.uid"));
        assert!(refused(|it| it.metadata.as_mut().unwrap().uid = "../x".into()).starts_with("metadata.uid"));
        assert!(refused(|it| it.hostname = "a\nb".into()).starts_with("hostname"));
        assert!(refused(|it| it.log_directory = "relative".into()).starts_with("log_directory"));
        let port = |it: &mut v1::PodSandboxConfig| {
            it.port_mappings.push(v1::PortMapping {
                host_port: 70_000,
                ..v1::PortMapping::default()
            });
        };
        assert!(refused(port).starts_with("port_mappings"));
    }
}
