//! A processor that is busy for chosen processes alone, so that a test can be late without making others late.
//!
//! The processes share a small part of the processor's time with one that takes all it gets. They are kept from running
//! for most of each period, as they would be on a machine that has far too much to do.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The kernel hands out time once in this long, in microseconds. It is no part of a second, so that what comes once in a while
/// does not always come right after that.
const PERIOD: u32 = 730_000;
/// And so much of it, which is gone soon also where many others want the processor. The rest of the time is theirs.
const QUOTA: u32 = 30_000;

/// A control group with little time and somebody who takes it.
#[derive(Debug)]
pub struct BusyCpu {
    group: PathBuf,
    hog: Option<Child>,
}

impl BusyCpu {
    /// `None` if this machine has no control group for the processor that we may make groups in.
    pub fn new() -> Option<Self> {
        let (root, is_unified) = controller()?;
        let group = root.join(format!("pulselet-busy-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let busy = Self { group, hog: None };
        busy.limit(is_unified).ok()?;
        Some(busy)
    }

    fn limit(&self, is_unified: bool) -> io::Result<()> {
        if is_unified {
            return self.write("cpu.max", &format!("{QUOTA} {PERIOD}"));
        }
        self.write("cpu.cfs_period_us", &PERIOD.to_string())?;
        self.write("cpu.cfs_quota_us", &QUOTA.to_string())
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.group.join(file), text)
    }

    /// Takes a process in, with all its threads. What it starts from now on is in the group, too.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn take(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Lets somebody take all the time the group has.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn begin(&mut self) -> io::Result<()> {
        let hog = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()?;
        let pid = hog.id();
        self.hog = Some(hog);
        self.take(pid)
    }
}

impl Drop for BusyCpu {
    /// Those who are in it go where they came from, so that the group can be removed.
    fn drop(&mut self) {
        if let Some(hog) = &mut self.hog {
            let _ = hog.kill();
            let _ = hog.wait();
        }
        let members = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        if let Some(parent) = self.group.parent() {
            for pid in members.lines() {
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
        }
        let _ = fs::remove_dir(&self.group);
    }
}

/// Where groups for the processor are made, and whether that is the unified hierarchy.
fn controller() -> Option<(PathBuf, bool)> {
    for name in ["cpu", "cpu,cpuacct"] {
        let root = Path::new("/sys/fs/cgroup").join(name);
        if root.join("cpu.cfs_quota_us").exists() || root.join("cgroup.procs").exists() {
            return Some((root, false));
        }
    }
    let root = PathBuf::from("/sys/fs/cgroup");
    let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
    enabled
        .split_whitespace()
        .any(|it| it == "cpu")
        .then_some((root, true))
}
