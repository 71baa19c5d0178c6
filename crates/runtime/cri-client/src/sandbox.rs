//! Sandboxes in CRI's words.
//!
//! CRI wants a sandbox's configuration again with each of its containers. It travels with the sandbox as an annotation,
//! so that an agent that never saw the sandbox made can give it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use pulselet_runtime::{
    Dns, Error, IdRange, Namespaces, Operation, PidNamespace, PodIdentity, PortMapping, Protocol, Result,
    SandboxConfig, SandboxId, SandboxState, SandboxStatus, Seccomp,
};
use thiserror::Error;

use crate::container::{resources, time};
use crate::labels;
use crate::wire::v1;

/// A sandbox's annotations do not hold what was put there.
#[derive(Debug, Error)]
enum LostConfig {
    #[error("its annotation {key} is missing", key = labels::SANDBOX)]
    Missing,
    #[error("its annotation {key} cannot be read: {source}", key = labels::SANDBOX)]
    Unreadable { source: serde_json::Error },
}

/// The whole configuration, for making the sandbox and for each of its containers.
pub(crate) fn to_wire(config: &SandboxConfig, owner: &str) -> v1::PodSandboxConfig {
    let mut annotations = config.annotations.clone();
    annotations.insert(labels::SANDBOX.to_owned(), remembered(config));
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: config.pod.name.clone(),
            uid: config.pod.uid.clone(),
            namespace: config.pod.namespace.clone(),
            attempt: config.attempt,
        }),
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.display().to_string(),
        dns_config: config.dns.as_ref().map(dns),
        port_mappings: config.port_mappings.iter().map(port_mapping).collect(),
        labels: labels::with_identity(config.labels.clone(), &config.pod, owner),
        annotations,
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent(config),
            security_context: Some(security(config)),
            sysctls: config.sysctls.clone(),
            overhead: None,
            resources: Some(resources(&config.resources)),
        }),
    }
}

fn cgroup_parent(config: &SandboxConfig) -> String {
    let parent = config.cgroup_parent.as_ref();
    // A path that does not begin at the root begins, for some servers, where they are themselves.
    parent
        .map(|parent| Path::new("/").join(parent).display().to_string())
        .unwrap_or_default()
}

/// The configuration without what the sandbox has as labels and annotations of its own.
fn remembered(config: &SandboxConfig) -> String {
    let config = SandboxConfig {
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        ..config.clone()
    };
    serde_json::to_string(&config).expect("a configuration is plain data")
}

/// The configuration a sandbox was made with.
pub(crate) fn recalled(status: &v1::PodSandboxStatus) -> Result<SandboxConfig> {
    let text = status.annotations.get(labels::SANDBOX).ok_or(LostConfig::Missing);
    let config = text.and_then(|text| {
        serde_json::from_str::<SandboxConfig>(text).map_err(|source| LostConfig::Unreadable { source })
    });
    let config = config.map_err(|error| Error::failed(Operation::SandboxStatus, error))?;
    Ok(SandboxConfig {
        labels: labels::without_reserved(status.labels.clone()),
        annotations: labels::without_reserved(status.annotations.clone()),
        ..config
    })
}

fn security(config: &SandboxConfig) -> v1::LinuxSandboxSecurityContext {
    let id = |number: u32| v1::Int64Value { value: number.into() };
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&config.namespaces)),
        run_as_user: config.run_as_user.map(id),
        // A group without a user is an error in CRI; the sandbox's own process does not need one.
        run_as_group: config.run_as_user.and(config.run_as_group).map(id),
        supplemental_groups: config
            .supplemental_groups
            .iter()
            .map(|group| i64::from(*group))
            .collect(),
        privileged: config.privileged,
        seccomp: Some(seccomp(&config.seccomp)),
        supplemental_groups_policy: groups_policy(config.strict_groups).into(),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

pub(crate) fn groups_policy(strict: bool) -> v1::SupplementalGroupsPolicy {
    if strict {
        v1::SupplementalGroupsPolicy::Strict
    } else {
        v1::SupplementalGroupsPolicy::Merge
    }
}

pub(crate) fn namespaces(namespaces: &Namespaces) -> v1::NamespaceOption {
    let shared = |host| {
        if host {
            v1::NamespaceMode::Node
        } else {
            v1::NamespaceMode::Pod
        }
    };
    let pid = match namespaces.pid {
        PidNamespace::Container => v1::NamespaceMode::Container,
        PidNamespace::Pod => v1::NamespaceMode::Pod,
        PidNamespace::Host => v1::NamespaceMode::Node,
    };
    v1::NamespaceOption {
        network: shared(namespaces.host_network).into(),
        pid: pid.into(),
        ipc: shared(namespaces.host_ipc).into(),
        userns_options: namespaces.user_ids.map(|range| v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: vec![id_mapping(range)],
            gids: vec![id_mapping(range)],
        }),
        ..v1::NamespaceOption::default()
    }
}

/// How the users or groups of a pod are numbered on the host.
pub(crate) fn id_mapping(range: IdRange) -> v1::IdMapping {
    v1::IdMapping {
        host_id: range.first,
        container_id: 0,
        length: range.count,
    }
}

/// The host's numbers that a sandbox of ours, or of another agent of this kind, stands on.
pub(crate) fn user_ids(item: &v1::PodSandbox) -> Option<IdRange> {
    let text = item.annotations.get(labels::SANDBOX)?;
    let config = serde_json::from_str::<SandboxConfig>(text).ok()?;
    config.namespaces.user_ids
}

pub(crate) fn seccomp(profile: &Seccomp) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (profile_type, localhost_ref) = match profile {
        Seccomp::Unconfined => (ProfileType::Unconfined, String::new()),
        Seccomp::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        Seccomp::Localhost(path) => (ProfileType::Localhost, path.display().to_string()),
    };
    v1::SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref,
    }
}

fn dns(dns: &Dns) -> v1::DnsConfig {
    v1::DnsConfig {
        servers: dns.servers.clone(),
        searches: dns.searches.clone(),
        options: dns.options.clone(),
    }
}

fn port_mapping(mapping: &PortMapping) -> v1::PortMapping {
    let protocol = match mapping.protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    };
    v1::PortMapping {
        protocol: protocol.into(),
        container_port: mapping.container_port.into(),
        host_port: mapping.host_port.into(),
        host_ip: mapping
            .host_ip
            .map(|address| address.to_string())
            .unwrap_or_default(),
    }
}

pub(crate) fn from_wire(status: v1::PodSandboxStatus) -> SandboxStatus {
    let network = status.network.unwrap_or_default();
    let more = network.additional_ips.into_iter().map(|address| address.ip);
    let addresses = std::iter::once(network.ip).chain(more);
    SandboxStatus {
        addresses: addresses.filter_map(|text| text.parse::<IpAddr>().ok()).collect(),
        ..from_item(v1::PodSandbox {
            id: status.id,
            metadata: status.metadata,
            state: status.state,
            created_at: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
            runtime_handler: status.runtime_handler,
        })
    }
}

/// A sandbox as a listing has it, without addresses.
pub(crate) fn from_item(item: v1::PodSandbox) -> SandboxStatus {
    let state = match item.state() {
        v1::PodSandboxState::SandboxReady => SandboxState::Ready,
        v1::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    };
    let metadata = item.metadata.unwrap_or_default();
    SandboxStatus {
        id: SandboxId::new(item.id),
        pod: PodIdentity {
            uid: metadata.uid,
            namespace: metadata.namespace,
            name: metadata.name,
        },
        attempt: metadata.attempt,
        state,
        created_at: time(item.created_at),
        addresses: Vec::new(),
        labels: labels::without_reserved(item.labels),
        annotations: labels::without_reserved(item.annotations),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SandboxConfig {
        SandboxConfig {
            pod: PodIdentity {
                uid: "u".into(),
                namespace: "default".into(),
                name: "web".into(),
            },
            attempt: 2,
            hostname: "web".into(),
            log_directory: "/logs/default_web_u".into(),
            namespaces: Namespaces {
                host_network: true,
                host_ipc: false,
                pid: PidNamespace::Pod,
                ..Namespaces::default()
            },
            run_as_group: Some(7),
            sysctls: BTreeMap::from([("net.ipv4.tcp_syncookies".into(), "1".into())]),
            port_mappings: vec![PortMapping {
                protocol: Protocol::Udp,
                container_port: 53,
                host_port: 5353,
                host_ip: "::1".parse().ok(),
            }],
            labels: BTreeMap::from([("app".into(), "web".into())]),
            annotations: BTreeMap::from([("note".into(), "x".into())]),
            ..SandboxConfig::default()
        }
    }

    #[test]
    fn an_agent_that_never_saw_it_made_recalls_the_configuration() {
        let wire = to_wire(&config(), "me");
        let status = v1::PodSandboxStatus {
            labels: wire.labels,
            annotations: wire.annotations,
            ..v1::PodSandboxStatus::default()
        };
        assert_eq!(recalled(&status).expect("recalled"), config());
    }

    #[test]
    fn namespaces_ports_and_groups_are_as_cri_wants_them() {
        let wire = to_wire(&config(), "me");
        let linux = wire.linux.expect("set");
        assert_eq!(linux.sysctls["net.ipv4.tcp_syncookies"], "1");
        let security = linux.security_context.expect("set");
        let namespaces = security.namespace_options.expect("set");
        assert_eq!(
            (namespaces.network(), namespaces.pid(), namespaces.ipc()),
            (
                v1::NamespaceMode::Node,
                v1::NamespaceMode::Pod,
                v1::NamespaceMode::Pod
            )
        );
        assert_eq!(security.run_as_group, None);
        let of_host = super::namespaces(&Namespaces {
            host_network: false,
            host_ipc: true,
            pid: PidNamespace::Host,
            ..Namespaces::default()
        });
        assert_eq!(
            (of_host.network(), of_host.pid(), of_host.ipc()),
            (
                v1::NamespaceMode::Pod,
                v1::NamespaceMode::Node,
                v1::NamespaceMode::Node
            )
        );
        let port = &wire.port_mappings[0];
        assert_eq!(
            (port.protocol(), port.host_ip.as_str()),
            (v1::Protocol::Udp, "::1")
        );
    }

    #[test]
    fn users_of_a_pods_own_are_one_range_and_are_found_again() {
        let mut config = config();
        config.namespaces.own_users = true;
        config.namespaces.user_ids = Some(IdRange {
            first: 1 << 30,
            count: 65_536,
        });
        let wire = to_wire(&config, "me");
        let item = v1::PodSandbox {
            annotations: wire.annotations,
            ..v1::PodSandbox::default()
        };
        assert_eq!(user_ids(&item), config.namespaces.user_ids);
        let namespaces = wire.linux.and_then(|linux| linux.security_context);
        let namespaces = namespaces.and_then(|security| security.namespace_options);
        let users = namespaces
            .and_then(|options| options.userns_options)
            .expect("set");
        let whole = v1::IdMapping {
            host_id: 1 << 30,
            container_id: 0,
            length: 65_536,
        };
        assert_eq!(users.mode(), v1::NamespaceMode::Pod);
        assert_eq!((users.uids, users.gids), (vec![whole], vec![whole]));
        let foreign = v1::PodSandbox::default();
        assert_eq!(user_ids(&foreign), None);
    }

    #[test]
    fn a_sandbox_without_our_annotation_is_an_error() {
        let error = recalled(&v1::PodSandboxStatus::default()).expect_err("nothing to recall");
        assert!(error.to_string().contains(labels::SANDBOX));
    }
}
