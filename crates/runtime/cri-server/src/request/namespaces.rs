//! Namespaces of every mode.

use pulselet_cri_wire::v1::{self, NamespaceMode};
use pulselet_runtime::{IdRange, Namespaces, PidNamespace};

use crate::refusal::RequestError;

/// Those of a sandbox.
pub(crate) fn of_sandbox(options: &v1::NamespaceOption) -> Result<Namespaces, RequestError> {
    let user_ids = match &options.userns_options {
        Some(users) => user_ids(users)?,
        None => None,
    };
    Ok(Namespaces {
        host_network: is_host("namespace_options.network", options.network())?,
        host_ipc: is_host("namespace_options.ipc", options.ipc())?,
        pid: match options.pid() {
            NamespaceMode::Pod => PidNamespace::Pod,
            NamespaceMode::Container => PidNamespace::Container,
            NamespaceMode::Node => PidNamespace::Host,
            NamespaceMode::Target => return Err(wrong_mode("namespace_options.pid", NamespaceMode::Target)),
        },
        own_users: user_ids.is_some(),
        user_ids,
    })
}

/// Whether a namespace is the host's; the other way is the pod's.
fn is_host(field: &'static str, mode: NamespaceMode) -> Result<bool, RequestError> {
    match mode {
        NamespaceMode::Node => Ok(true),
        NamespaceMode::Pod => Ok(false),
        NamespaceMode::Container | NamespaceMode::Target => Err(wrong_mode(field, mode)),
    }
}

fn wrong_mode(field: &'static str, mode: NamespaceMode) -> RequestError {
    RequestError::invalid(
        field,
        format!("there is no such namespace of mode {}", mode.as_str_name()),
    )
}

/// The range of a pod that has users of its own.
fn user_ids(users: &v1::UserNamespace) -> Result<Option<IdRange>, RequestError> {
    const FIELD: &str = "userns_options";
    match users.mode() {
        NamespaceMode::Node if users.uids.is_empty() && users.gids.is_empty() => return Ok(None),
        NamespaceMode::Node => {
            let detail = "the host's users need no mappings";
            return Err(RequestError::invalid(FIELD, detail));
        }
        NamespaceMode::Pod => {}
        mode @ (NamespaceMode::Container | NamespaceMode::Target) => return Err(wrong_mode(FIELD, mode)),
    }
    let ([uids], [gids]) = (users.uids.as_slice(), users.gids.as_slice()) else {
        let detail = "users and groups need exactly one mapping each";
        return Err(RequestError::invalid(FIELD, detail));
    };
    if uids != gids {
        return Err(RequestError::invalid(
            FIELD,
            "users and groups need the same mapping",
        ));
    }
    range(uids).map(Some)
}

fn range(mapping: &v1::IdMapping) -> Result<IdRange, RequestError> {
    const FIELD: &str = "userns_options";
    if mapping.container_id != 0 {
        return Err(RequestError::invalid(
            FIELD,
            "the mapping must begin with root, 0",
        ));
    }
    let last = mapping.host_id.checked_add(mapping.length);
    if mapping.length == 0 || last.is_none() {
        return Err(RequestError::invalid(FIELD, "the mapping has no such length"));
    }
    Ok(IdRange {
        first: mapping.host_id,
        count: mapping.length,
    })
}

/// The process namespace of a container: which, and whose.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ContainerPid {
    /// `None` if it is as the sandbox says.
    pub(crate) mode: Option<PidNamespace>,
    /// The id of the container whose processes are to be seen.
    pub(crate) target: Option<String>,
}

/// That of a container. Its other namespaces are those of the sandbox, and cannot be others.
pub(crate) fn of_container(
    options: Option<&v1::NamespaceOption>,
    sandbox: &Namespaces,
) -> Result<ContainerPid, RequestError> {
    let Some(options) = options else {
        return Ok(ContainerPid::default());
    };
    for (field, mode, is_hosts) in [
        (
            "namespace_options.network",
            options.network(),
            sandbox.host_network,
        ),
        ("namespace_options.ipc", options.ipc(), sandbox.host_ipc),
    ] {
        if is_host(field, mode)? != is_hosts {
            return Err(RequestError::invalid(field, "differs from that of the sandbox"));
        }
    }
    let (mode, target) = match options.pid() {
        NamespaceMode::Pod => (PidNamespace::Pod, None),
        NamespaceMode::Container => (PidNamespace::Container, None),
        NamespaceMode::Node => (PidNamespace::Host, None),
        NamespaceMode::Target => (PidNamespace::Container, Some(options.target_id.clone())),
    };
    Ok(ContainerPid {
        mode: Some(mode),
        target,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(mode: NamespaceMode, mappings: &[(u32, u32, u32)]) -> v1::NamespaceOption {
        let mappings: Vec<v1::IdMapping> = mappings
            .iter()
            .map(|(host_id, container_id, length)| v1::IdMapping {
                host_id: *host_id,
                container_id: *container_id,
                length: *length,
            })
            .collect();
        v1::NamespaceOption {
            userns_options: Some(v1::UserNamespace {
                mode: mode.into(),
                uids: mappings.clone(),
                gids: mappings,
            }),
            ..v1::NamespaceOption::default()
        }
    }

    #[test]
    fn users_of_a_pods_own_are_one_range_from_root_on() {
        let own = of_sandbox(&users(NamespaceMode::Pod, &[(65536, 0, 65536)])).expect("is allowed");
        assert_eq!(
            (own.own_users, own.user_ids),
            (
                true,
                Some(IdRange {
                    first: 65536,
                    count: 65536
                })
            )
        );
        let host = of_sandbox(&users(NamespaceMode::Node, &[])).expect("is allowed");
        assert!(!host.own_users);
        for wrong in [
            users(NamespaceMode::Pod, &[]),
            users(NamespaceMode::Pod, &[(1, 0, 10), (20, 10, 10)]),
            users(NamespaceMode::Pod, &[(65536, 1, 65536)]),
            users(NamespaceMode::Pod, &[(65536, 0, 0)]),
            users(NamespaceMode::Pod, &[(u32::MAX, 0, 2)]),
            users(NamespaceMode::Container, &[(65536, 0, 65536)]),
            users(NamespaceMode::Target, &[(65536, 0, 65536)]),
            users(NamespaceMode::Node, &[(65536, 0, 65536)]),
        ] {
            assert!(of_sandbox(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_container_may_differ_in_its_processes_alone() {
        let sandbox = Namespaces {
            pid: PidNamespace::Pod,
            ..Namespaces::default()
        };
        let with = |change: fn(&mut v1::NamespaceOption)| {
            let mut options = v1::NamespaceOption::default();
            change(&mut options);
            of_container(Some(&options), &sandbox)
        };
        assert_eq!(of_container(None, &sandbox), Ok(ContainerPid::default()));
        let target = with(|options| {
            options.set_pid(NamespaceMode::Target);
            options.target_id = "c".into();
        });
        assert_eq!(target.expect("is allowed").target.as_deref(), Some("c"));
        assert!(with(|options| options.set_network(NamespaceMode::Node)).is_err());
        assert!(with(|options| options.set_ipc(NamespaceMode::Container)).is_err());
    }
}
