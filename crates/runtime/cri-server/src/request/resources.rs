//! Limits. In CRI zero is "not said".

use pulselet_cri_wire::v1;
use pulselet_runtime::Resources;

use crate::refusal::RequestError;

/// The file of a unified cgroup for which a runtime has a limit of its own.
const PIDS_MAX: &str = "pids.max";

pub(crate) fn resources(given: &v1::LinuxContainerResources) -> Result<Resources, RequestError> {
    let positive = |field: &'static str, value: i64| -> Result<Option<u64>, RequestError> {
        let number =
            u64::try_from(value).map_err(|_| RequestError::invalid(field, format!("{value} is negative")))?;
        Ok(Some(number).filter(|number| *number > 0))
    };
    let text = |value: &String| Some(value.clone()).filter(|value| !value.is_empty());
    if let Some(limit) = given.hugepage_limits.iter().find(|limit| limit.limit > 0) {
        return Err(RequestError::invalid(
            "hugepage_limits",
            format!(
                "huge pages ({}) are not supported: leave them out of the pod",
                limit.page_size
            ),
        ));
    }
    let mut unified = given.unified.clone();
    let pids_limit = unified.remove(PIDS_MAX).map(|text| pids_max(&text)).transpose()?;
    Ok(Resources {
        cpu_shares: positive("cpu_shares", given.cpu_shares)?,
        cpu_quota: Some(given.cpu_quota).filter(|quota| *quota != 0),
        cpu_period: positive("cpu_period", given.cpu_period)?,
        memory_limit: positive("memory_limit_in_bytes", given.memory_limit_in_bytes)?,
        memory_swap_limit: match given.memory_swap_limit_in_bytes {
            -1 => Some(u64::MAX),
            bytes => positive("memory_swap_limit_in_bytes", bytes)?,
        },
        pids_limit: pids_limit.flatten(),
        cpuset_cpus: text(&given.cpuset_cpus),
        cpuset_mems: text(&given.cpuset_mems),
        oom_score_adj: None,
        unified,
    })
}

/// The limits of a container, with whom the kernel kills first.
pub(crate) fn of_container(given: &v1::LinuxContainerResources) -> Result<Resources, RequestError> {
    let score = i32::try_from(given.oom_score_adj).ok();
    let score = score.filter(|score| (-1000..=1000).contains(score));
    let score = score.ok_or_else(|| {
        RequestError::invalid("oom_score_adj", format!("{} is not one", given.oom_score_adj))
    })?;
    Ok(Resources {
        oom_score_adj: Some(score),
        ..resources(given)?
    })
}

/// Returns `None` if there is no limit.
fn pids_max(text: &str) -> Result<Option<u64>, RequestError> {
    if text == "max" {
        return Ok(None);
    }
    let number = text.parse();
    number
        .map(Some)
        .map_err(|_| RequestError::invalid("unified", format!("{PIDS_MAX} is not a number: {text:?}")))
}

/// The limits that a container has, for its status.
pub(crate) fn to_wire(resources: &Resources) -> v1::LinuxContainerResources {
    let number = |value: Option<u64>| i64::try_from(value.unwrap_or(0)).unwrap_or(i64::MAX);
    let pids = resources
        .pids_limit
        .map(|limit| (PIDS_MAX.to_owned(), limit.to_string()));
    v1::LinuxContainerResources {
        cpu_period: number(resources.cpu_period),
        cpu_quota: resources.cpu_quota.unwrap_or(0),
        cpu_shares: number(resources.cpu_shares),
        memory_limit_in_bytes: number(resources.memory_limit),
        oom_score_adj: resources.oom_score_adj.unwrap_or(0).into(),
        cpuset_cpus: resources.cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: resources.cpuset_mems.clone().unwrap_or_default(),
        hugepage_limits: Vec::new(),
        unified: resources.unified.clone().into_iter().chain(pids).collect(),
        memory_swap_limit_in_bytes: match resources.memory_swap_limit {
            Some(u64::MAX) => -1,
            limit => number(limit),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_back_as_they_were_given() {
        let given = v1::LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: -1,
            cpu_shares: 512,
            memory_limit_in_bytes: 1 << 20,
            oom_score_adj: 999,
            cpuset_cpus: "0-1".into(),
            unified: [(PIDS_MAX.to_owned(), "17".to_owned())].into(),
            memory_swap_limit_in_bytes: -1,
            ..v1::LinuxContainerResources::default()
        };
        let resources = of_container(&given).expect("is allowed");
        assert_eq!(
            (resources.pids_limit, resources.cpuset_mems.as_ref()),
            (Some(17), None)
        );
        assert_eq!(to_wire(&resources), given);
        let nothing = of_container(&v1::LinuxContainerResources::default()).expect("is allowed");
        assert_eq!(nothing.memory_limit, None);
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        let refused = |change: fn(&mut v1::LinuxContainerResources)| {
            let mut given = v1::LinuxContainerResources::default();
            change(&mut given);
            of_container(&given).expect_err("was made wrong").to_string()
        };
        assert!(refused(|it| it.cpu_shares = -1).starts_with("cpu_shares: "));
        assert!(refused(|it| it.memory_limit_in_bytes = -5).starts_with("memory_limit_in_bytes: "));
        assert!(refused(|it| it.oom_score_adj = 1001).starts_with("oom_score_adj: "));
        assert!(
            refused(|it| it.unified = [(PIDS_MAX.to_owned(), "x".to_owned())].into())
                .starts_with("unified: ")
        );
        let huge = |it: &mut v1::LinuxContainerResources| {
            it.hugepage_limits.push(v1::HugepageLimit {
                page_size: "2MB".into(),
                limit: 1,
            });
        };
        assert!(refused(huge).contains("2MB"));
    }
}
