//! Finding and killing the processes below one, whatever they have done to escape.
//!
//! A process can leave its group and session and lose its parent, but it stays a descendant of the nearest subreaper.
//! While they are being listed processes may fork; so they are stopped first, until no new one turns up, and killed
//! then. The kernel lists the children of a thread; that is an option of it, and where it is missing all processes of the
//! machine are read instead, which takes the longer the more there are.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::Path,
};

use pulselet_sys::{Pid, process_id};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Bytes that are read of a process's environment. What we put there comes in one that the kernel took from us, which is
/// shorter.
const MAX_ENVIRONMENT: u64 = 8 << 20;

/// Rounds of stopping. Each finds only what the one before had missed, so more than a few means a fork bomb, which the
/// next call goes on with.
const STOP_ROUNDS: usize = 32;

/// Kills every descendant of `root` but not `root` itself and not those in `spare` (their descendants are killed). What
/// was killed still has to be waited for. Returns how many there were.
pub(crate) fn kill_descendants(root: Pid, spare: &HashSet<Pid>) -> usize {
    let mut victims: HashMap<Pid, OwnedFd> = HashMap::new();
    for _ in 0..STOP_ROUNDS {
        let mut found = false;
        for (pid, parent) in descendants(root) {
            if spare.contains(&pid) || victims.contains_key(&pid) {
                continue;
            }
            let Some(handle) = open_child(pid, parent) else {
                continue;
            };
            let _ = pidfd_send_signal(&handle, Signal::STOP);
            victims.insert(pid, handle);
            found = true;
        }
        if !found {
            break;
        }
    }
    for handle in victims.values() {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    victims.len()
}

/// Processes that carry a variable of this value in the environment they were started with, this process excepted. What
/// cannot be read belongs to somebody else.
pub fn processes_with_variable(name: &str, value: &str) -> Vec<Pid> {
    let wanted = format!("{name}={value}");
    all_processes()
        .filter(|pid| *pid != rustix::process::getpid())
        .filter(|pid| {
            environment_of(*pid).is_ok_and(|environ| {
                environ
                    .split(|&byte| byte == 0)
                    .any(|entry| entry == wanted.as_bytes())
            })
        })
        .collect()
}

/// As far as it is read: a process decides itself how much there is.
fn environment_of(pid: Pid) -> io::Result<Vec<u8>> {
    let file = File::open(format!("/proc/{}/environ", pid.as_raw_nonzero()))?;
    let mut bytes = Vec::new();
    file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A handle of the process, if it is still the child of that parent and not another that got its number.
fn open_child(pid: Pid, parent: Pid) -> Option<OwnedFd> {
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let now = living_parent(pid)?;
    // An orphan moved up to a subreaper while we looked is found again in the next round.
    (now == parent).then_some(handle)
}

/// Processes below `root`, each with its parent. Some of them may have ended already.
fn descendants(root: Pid) -> Vec<(Pid, Pid)> {
    let lists_children = Path::new("/proc/thread-self/children").exists();
    if lists_children {
        below(root, listed_children)
    } else {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for pid in all_processes() {
            if let Some(parent) = living_parent(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        below(root, |parent| children.remove(&parent).unwrap_or_default())
    }
}

fn below(root: Pid, mut children_of: impl FnMut(Pid) -> Vec<Pid>) -> Vec<(Pid, Pid)> {
    let mut found = Vec::new();
    let mut pending = vec![root];
    while let Some(parent) = pending.pop() {
        for child in children_of(parent) {
            found.push((child, parent));
            pending.push(child);
        }
    }
    found
}

/// The children of all threads of a process. One that ends while the kernel writes the list may take others out of it; they are
/// found in the next round.
fn listed_children(parent: Pid) -> Vec<Pid> {
    let threads = format!("/proc/{}/task", parent.as_raw_nonzero());
    let threads = fs::read_dir(threads).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_ascii_whitespace();
            let pids = numbers.filter_map(|number| process_id(number.parse().ok()?));
            pids.collect::<Vec<_>>()
        })
        .collect()
}

fn all_processes() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| process_id(entry.ok()?.file_name().to_str()?.parse().ok()?))
}

/// The parent of a process; `None` if it is gone or a zombie.
fn living_parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    parse_parent(&stat)
}

/// The name, in parentheses, may hold anything, parentheses too.
fn parse_parent(stat: &[u8]) -> Option<Pid> {
    let after_name = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
    let mut fields = std::str::from_utf8(after_name).ok()?.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => process_id(fields.next()?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with many pods has thousands of processes that are none of one container's business.
    #[test]
    fn children_of_every_thread_are_found_without_reading_all_processes() {
        let child = std::thread::spawn(|| {
            let child = std::process::Command::new("sleep").arg("1000").spawn();
            child.expect("runs")
        });
        let mut child = child.join().expect("does not panic");
        let wanted = Pid::from_child(&child);
        let own = rustix::process::getpid();
        let listed = listed_children(own);
        let found = descendants(own);
        let scanned: Vec<Pid> = all_processes()
            .filter(|pid| living_parent(*pid) == Some(own))
            .collect();
        child.kill().expect("is ours");
        child.wait().expect("has ended");
        if Path::new("/proc/thread-self/children").exists() {
            assert!(listed.contains(&wanted), "{listed:?}");
        }
        assert!(found.contains(&(wanted, own)), "{found:?}");
        assert!(scanned.contains(&wanted), "{scanned:?}");
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let parent = |line: &str| parse_parent(line.as_bytes()).map(|pid| pid.as_raw_nonzero().get());
        assert_eq!(parent("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (a) R 1 (b) S 7 12"), Some(7));
        assert_eq!(parent("12 (sh) Z 7 12"), None);
        assert_eq!(parent("1 (init) S 0 1 1"), None);
        assert_eq!(parent(""), None);
        assert_eq!(parent("12 (sh)"), None);
    }
}
