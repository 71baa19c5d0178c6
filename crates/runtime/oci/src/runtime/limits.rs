//! Limits that change while a container is there.
//!
//! A container's limits are those of its specification, which is rewritten after the kernel has the new ones: a container
//! that was not started yet begins with them, and one that runs has them from now on.

use pulselet_runtime::{BoxError, ContainerId, ContainerState, Error, Operation, Resources, Result};

use super::OciRuntime;
use crate::spec::ContainerSpec;

impl OciRuntime {
    pub(super) async fn update_container_to_the_end(
        &self,
        id: &ContainerId,
        given: &Resources,
    ) -> Result<()> {
        let operation = Operation::UpdateContainer;
        let state = self.0.shims.container_status(id)?.state;
        let runs = match state {
            ContainerState::Created => false,
            ContainerState::Running { .. } | ContainerState::Unknown => true,
            ContainerState::Exited(_) => {
                return Err(Error::WrongState {
                    operation,
                    id: id.to_string(),
                    state: "exited",
                });
            }
        };
        let dir = self.0.shims.container_dir(id)?;
        let given = given.clone();
        self.blocking(operation, move |inner| {
            let spec = ContainerSpec::read(&dir)?;
            let mut spec = spec.ok_or_else(|| BoxError::from("it has no specification"))?;
            let merged = merge(&spec.cgroup.resources, given);
            if runs {
                let cgroup = inner.cgroups.hierarchies.cgroup(&spec.cgroup.path);
                cgroup.change_limits(&merged)?;
            }
            spec.cgroup.resources = merged;
            spec.write(&dir)?;
            Ok::<(), BoxError>(())
        })
        .await
    }
}

/// What is given wins.
fn merge(now: &Resources, given: Resources) -> Resources {
    let mut unified = now.unified.clone();
    unified.extend(given.unified);
    Resources {
        cpu_shares: given.cpu_shares.or(now.cpu_shares),
        cpu_quota: given.cpu_quota.or(now.cpu_quota),
        cpu_period: given.cpu_period.or(now.cpu_period),
        memory_limit: given.memory_limit.or(now.memory_limit),
        memory_swap_limit: given.memory_swap_limit.or(now.memory_swap_limit),
        pids_limit: given.pids_limit.or(now.pids_limit),
        cpuset_cpus: given.cpuset_cpus.or_else(|| now.cpuset_cpus.clone()),
        cpuset_mems: given.cpuset_mems.or_else(|| now.cpuset_mems.clone()),
        // The kernel has it per process; those that run keep theirs.
        oom_score_adj: now.oom_score_adj,
        unified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_changes() {
        let now = Resources {
            cpu_shares: Some(100),
            memory_limit: Some(1 << 20),
            oom_score_adj: Some(5),
            ..Resources::default()
        };
        let given = Resources {
            cpu_shares: Some(200),
            oom_score_adj: Some(7),
            cpuset_cpus: Some("0".into()),
            ..Resources::default()
        };
        let merged = merge(&now, given);
        assert_eq!(
            (merged.cpu_shares, merged.memory_limit),
            (Some(200), Some(1 << 20))
        );
        assert_eq!(
            (merged.oom_score_adj, merged.cpuset_cpus.as_deref()),
            (Some(5), Some("0"))
        );
    }
}
