//! How much of everything there is left.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use pulselet_plan::duties::PressureSignal;

/// What is left of something, and how much there is in all: bytes or pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub available: u64,
    pub capacity: u64,
}

/// One look at everything; `None` where it could not be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureReadings {
    pub memory: Option<Level>,
    pub disk: Option<Level>,
    pub inodes: Option<Level>,
    pub pids: Option<Level>,
}

impl PressureReadings {
    pub(crate) const fn level(&self, signal: PressureSignal) -> Option<Level> {
        match signal {
            PressureSignal::MemoryAvailable => self.memory,
            PressureSignal::NodeFsAvailable => self.disk,
            PressureSignal::NodeFsInodesFree => self.inodes,
            PressureSignal::PidAvailable => self.pids,
        }
    }
}

/// Who knows what is left.
pub trait PressureSignals: fmt::Debug + Send + Sync {
    /// Quick: the agent waits for it.
    fn read(&self) -> PressureReadings;
}

/// This machine. Its disk is the one with the node's data.
#[derive(Debug)]
pub struct MachineSignals {
    data_dir: PathBuf,
}

impl MachineSignals {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
        }
    }
}

impl PressureSignals for MachineSignals {
    fn read(&self) -> PressureReadings {
        let disk = rustix::fs::statvfs(&self.data_dir).ok();
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        PressureReadings {
            memory: memory(&text("/proc/meminfo")),
            disk: disk.as_ref().map(|disk| Level {
                available: disk.f_bavail.saturating_mul(disk.f_frsize),
                capacity: disk.f_blocks.saturating_mul(disk.f_frsize),
            }),
            // Some file systems have as many as they need, and say that they have none.
            inodes: disk.as_ref().filter(|disk| disk.f_files > 0).map(|disk| Level {
                available: disk.f_favail,
                capacity: disk.f_files,
            }),
            pids: pids(&text("/proc/sys/kernel/pid_max"), &text("/proc/loadavg")),
        }
    }
}

fn memory(meminfo: &str) -> Option<Level> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes.saturating_mul(1024))
    };
    Some(Level {
        available: bytes("MemAvailable:")?,
        capacity: bytes("MemTotal:")?,
    })
}

fn pids(most: &str, load: &str) -> Option<Level> {
    let capacity: u64 = most.trim().parse().ok()?;
    let tasks: u64 = load.split(' ').nth(3)?.split_once('/')?.1.parse().ok()?;
    Some(Level {
        available: capacity.saturating_sub(tasks),
        capacity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read_as_it_writes_them() {
        let text = "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n";
        let level = |available, capacity| Some(Level { available, capacity });
        assert_eq!(memory(text), level(8 * 1024, 16 * 1024));
        assert_eq!(memory(""), None);
        assert_eq!(pids("32768\n", "0.5 0.4 0.3 2/768 4711\n"), level(32_000, 32_768));
        assert_eq!(pids("many", "0.5"), None);
    }

    #[test]
    fn this_machine_has_something_of_everything() {
        let readings = MachineSignals::new("/").read();
        for level in [readings.memory, readings.disk, readings.pids] {
            let level = level.expect("it can be measured");
            assert!(
                level.available <= level.capacity && level.capacity > 0,
                "{level:?}"
            );
        }
    }
}
