//! What the kernel says about the whole machine.

use std::fs;
use std::time::Duration;

/// The kernel counts times in hundredths of a second, on every machine.
const NANOS_PER_TICK: u64 = 10_000_000;

/// Fields of the line `cpu` of /proc/stat in which no processor worked: idle, and idle while waiting for a disk. What
/// guests used, behind them, is in the other fields already.
const IDLE_FIELDS: [usize; 2] = [3, 4];
const OWN_FIELDS: usize = 8;

/// Bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) available: u64,
    pub(super) usage: u64,
    /// Without what can be reclaimed easily.
    pub(super) working_set: u64,
}

/// Nanoseconds that all processors have worked since the machine started.
pub(super) fn cpu_nanos() -> u64 {
    parse_cpu(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Since the machine started.
pub(super) fn uptime() -> Duration {
    let seconds = rustix::system::sysinfo().uptime;
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

pub(super) fn memory() -> Memory {
    parse_memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn parse_cpu(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields = line.unwrap_or_default().split_ascii_whitespace().take(OWN_FIELDS);
    let busy = fields
        .enumerate()
        .filter(|(index, _)| !IDLE_FIELDS.contains(index))
        .filter_map(|(_, field)| field.parse::<u64>().ok());
    busy.sum::<u64>().saturating_mul(NANOS_PER_TICK)
}

fn parse_memory(text: &str) -> Memory {
    let bytes = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
        number.unwrap_or(0).saturating_mul(1024)
    };
    let usage = bytes("MemTotal").saturating_sub(bytes("MemFree"));
    Memory {
        available: bytes("MemAvailable"),
        usage,
        working_set: usage.saturating_sub(bytes("Inactive(file)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_counted() {
        let text = "cpu  10 1 2 1000 50 3 4 5 6 7\ncpu0 1 2 3 4\n";
        assert_eq!(parse_cpu(text), 25 * NANOS_PER_TICK);
        assert_eq!(parse_cpu(""), 0);
        assert!(cpu_nanos() > 0 && uptime() > Duration::ZERO);
    }

    #[test]
    fn caches_are_not_in_the_working_set() {
        let text = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nInactive(file): 100 kB\n";
        let expected = Memory {
            available: 600 << 10,
            usage: 700 << 10,
            working_set: 600 << 10,
        };
        assert_eq!(parse_memory(text), expected);
        assert!(memory().working_set > 0);
    }
}
