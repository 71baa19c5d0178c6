//! How low a container's `oom_score_adj` can go.
//!
//! Only who has `CAP_SYS_RESOURCE` may lower a score. Without it a container gets what its pod asks for as far as that is
//! not below the agent's own score.

use std::{fs, sync::OnceLock};

/// The number of `CAP_SYS_RESOURCE`.
const SYS_RESOURCE: u32 = 24;

/// The kernel's lowest score: it never kills such a process.
const LOWEST: i32 = -1000;

/// The score that a container can have instead of the wanted one. The first that cannot be had is reported.
pub(crate) fn allowed(wanted: i32) -> i32 {
    static REPORTED: OnceLock<()> = OnceLock::new();
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let lowest = lowest(&read("status"), &read("oom_score_adj"));
    if wanted < lowest {
        REPORTED.get_or_init(|| {
            tracing::warn!(
                wanted,
                lowest,
                "the agent lacks CAP_SYS_RESOURCE: pods cannot be kept from being killed first when memory runs out"
            );
        });
    }
    wanted.max(lowest)
}

/// Of this process's status and score.
fn lowest(status: &str, own: &str) -> i32 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    if capabilities.is_some_and(|bits| bits & (1 << SYS_RESOURCE) != 0) {
        return LOWEST;
    }
    own.trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_go_down_only_with_the_capability() {
        assert_eq!(lowest("Name:\tx\nCapEff:\t000001ffffffffff\n", "0\n"), LOWEST);
        assert_eq!(lowest("CapEff:\t000001fffeffffff\n", "5\n"), 5);
        assert_eq!(lowest("", ""), 0);
        assert_eq!(allowed(1000), 1000);
    }
}
