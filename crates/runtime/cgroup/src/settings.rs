//! What limits are in the files of each version, and in the kernel's units.

use pulselet_runtime::Resources;

/// Shares of the CPU that stand for one processor.
const SHARES_PER_CPU: u64 = 1024;
/// The kernel's bounds of shares.
pub const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
/// The kernel's largest weight; the smallest is 1.
const MAX_WEIGHT: u64 = 10_000;

/// What thousandths of a processor are in shares, as a kubelet converts them.
pub fn cpu_shares(cpu_millis: u64) -> u64 {
    (cpu_millis.saturating_mul(SHARES_PER_CPU) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// A controller, a file of it, and what is written there.
pub(crate) type Setting = (&'static str, &'static str, String);

pub(crate) fn v1_settings(resources: &Resources) -> Vec<Setting> {
    let numbers = [
        ("cpu", "cpu.shares", resources.cpu_shares.map(|n| n.to_string())),
        (
            "cpu",
            "cpu.cfs_period_us",
            resources.cpu_period.map(|n| n.to_string()),
        ),
        (
            "cpu",
            "cpu.cfs_quota_us",
            resources.cpu_quota.map(|n| n.to_string()),
        ),
        (
            "memory",
            "memory.limit_in_bytes",
            resources.memory_limit.map(|n| n.to_string()),
        ),
        ("cpuset", "cpuset.cpus", resources.cpuset_cpus.clone()),
        ("cpuset", "cpuset.mems", resources.cpuset_mems.clone()),
    ];
    given(numbers)
}

pub(crate) fn v2_settings(resources: &Resources) -> Vec<Setting> {
    let quota = resources.cpu_quota.map(|quota| {
        let period = resources.cpu_period.unwrap_or(100_000);
        if quota > 0 {
            format!("{quota} {period}")
        } else {
            format!("max {period}")
        }
    });
    let numbers = [
        (
            "cpu",
            "cpu.weight",
            resources.cpu_shares.map(|shares| weight(shares).to_string()),
        ),
        ("cpu", "cpu.max", quota),
        (
            "memory",
            "memory.max",
            resources.memory_limit.map(|n| n.to_string()),
        ),
        ("cpuset", "cpuset.cpus", resources.cpuset_cpus.clone()),
        ("cpuset", "cpuset.mems", resources.cpuset_mems.clone()),
    ];
    given(numbers)
}

fn given(settings: impl IntoIterator<Item = (&'static str, &'static str, Option<String>)>) -> Vec<Setting> {
    settings
        .into_iter()
        .filter_map(|(controller, file, value)| Some((controller, file, value?)))
        .collect()
}

/// Shares of version 1 as a weight of version 2, as a kubelet converts them.
pub(crate) fn weight(shares: u64) -> u64 {
    let shares = shares.clamp(MIN_SHARES, MAX_SHARES);
    1 + (shares - MIN_SHARES) * (MAX_WEIGHT - 1) / (MAX_SHARES - MIN_SHARES)
}
