//! Whom the kernel kills first when memory runs out: the `oom_score_adj` of the agent, of shims and of containers.
//!
//! The agent goes last, then shims, then containers as their pods ask for. Only who has `CAP_SYS_RESOURCE` may lower a
//! score. Without it agent and shims stay as they are, and a container gets what its pod asks for as far as that is not
//! below the agent's own score.

use std::{fs, io, sync::OnceLock};

/// The number of `CAP_SYS_RESOURCE`.
const SYS_RESOURCE: u32 = 24;

/// The kernel's lowest score: it never kills such a process.
const LOWEST: i32 = -1000;

/// Below every container: without the agent and its shims nobody looks after them. As a kubelet and containerd have it.
const AGENT: i32 = -999;
const SHIM: i32 = -998;

const OWN_SCORE: &str = "/proc/self/oom_score_adj";

/// Protects this process, the agent, unless somebody has given it a score. The first time that it cannot is reported.
pub(crate) fn protect_agent() {
    if read("oom_score_adj").trim() == "0" {
        let _ = set(allowed(AGENT));
    }
}

/// Protects this process, a shim, as far as it may.
pub(crate) fn protect_shim() {
    // Who has the right to needs no look at what he has, which takes longer than setting it.
    if set(SHIM).is_err() {
        let _ = set(clamped(SHIM));
    }
}

/// Gives this process, which becomes one of a container, the container's score. Without one it must not have the
/// shim's; and what is set with the capability is the lowest that the container can set without it.
pub(crate) fn take_containers(score: Option<i32>) {
    // As far as this process has the right to.
    let _ = set(score.unwrap_or(0));
}

fn set(score: i32) -> io::Result<()> {
    fs::write(OWN_SCORE, score.to_string())
}

fn read(name: &str) -> String {
    fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default()
}

fn clamped(wanted: i32) -> i32 {
    wanted.max(lowest(&read("status"), &read("oom_score_adj")))
}

/// The score that a container can have instead of the wanted one. The first that cannot be had is reported.
pub(crate) fn allowed(wanted: i32) -> i32 {
    static REPORTED: OnceLock<()> = OnceLock::new();
    let lowest = clamped(wanted);
    if wanted < lowest {
        REPORTED.get_or_init(|| {
            tracing::warn!(
                wanted,
                lowest,
                "the agent lacks CAP_SYS_RESOURCE: neither it nor its pods can be kept from being killed first when memory runs out"
            );
        });
    }
    lowest
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

    #[test]
    fn the_agent_is_killed_last_and_shims_before_it() {
        let with = "CapEff:\t000001ffffffffff\n";
        let wanted = |score: i32, status: &str, own: &str| score.max(lowest(status, own));
        // The last is what a guaranteed pod has.
        let scores = [AGENT, SHIM, -997].map(|score| wanted(score, with, "0"));
        assert_eq!(scores, [-999, -998, -997]);
        let scores = [AGENT, SHIM, -997].map(|score| wanted(score, "CapEff:\t0\n", "0"));
        assert_eq!(scores, [0, 0, 0]);
    }
}
