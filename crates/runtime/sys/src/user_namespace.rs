//! New namespaces that belong to a new user namespace, made for a process with many threads.
//!
//! Neither a user namespace nor anything that is to belong to it can be made by a process with more than one thread. So
//! a copy of the calling thread makes them and holds them until the caller has taken hold of them by their files.

use std::{
    fs::{self, File},
    io::{self, PipeReader, PipeWriter, Read, Write},
    mem, ptr,
};

use rustix::{
    event::poll,
    fs::{Gid, Uid},
    io::Errno,
    process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal},
    thread::{UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid, unshare_unsafe},
};

use crate::fork::child_of;

/// What the holder is told when its users are mapped.
const GO: [u8; 1] = [1];

/// A process that does nothing but be in new namespaces. It ends when this is dropped, and with the thread that made it.
#[derive(Debug)]
pub struct NamespaceHolder {
    pid: Pid,
}

impl NamespaceHolder {
    /// Makes a user namespace in which the users and groups from 0 to `count` are those of this machine from `first` on,
    /// and in it the other namespaces, which belong to it.
    pub fn start(first: u32, count: u32, others: UnshareFlags) -> io::Result<Self> {
        let (go_reader, mut go) = io::pipe()?;
        let (mut done, done_writer) = io::pipe()?;
        let ends = HolderEnds {
            go: go_reader,
            done: done_writer,
            flags: others,
            parent: getpid(),
        };
        let holder = Self { pid: clone(&ends)? };
        drop(ends);
        let map = format!("0 {first} {count}\n");
        for name in ["uid_map", "gid_map"] {
            fs::write(holder.path(name), &map)?;
        }
        go.write_all(&GO)?;
        let mut answer = [0; size_of::<i32>()];
        done.read_exact(&mut answer)?;
        match i32::from_ne_bytes(answer) {
            0 => Ok(holder),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// The file of one of its namespaces, by the name it has in /proc/PID/ns.
    pub fn namespace(&self, name: &str) -> io::Result<File> {
        File::open(self.path(&format!("ns/{name}")))
    }

    fn path(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid.as_raw_nonzero())
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        // SAFETY: the call touches no memory of this process. The child is this process's own and nobody else waits for it.
        unsafe { libc::waitpid(self.pid.as_raw_nonzero().get(), ptr::null_mut(), libc::__WALL) };
    }
}

/// The holder's ends of the pipes, what it makes, and whose it is.
struct HolderEnds {
    go: PipeReader,
    done: PipeWriter,
    flags: UnshareFlags,
    parent: Pid,
}

/// Splits off the holder. No handler of the caller's signals ever runs in it.
fn clone(ends: &HolderEnds) -> io::Result<Pid> {
    // SAFETY: the structure is plain data, for which zeroes are a valid value.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    let mut before = all;
    // SAFETY: the set lives through the call, which only fills it.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets live through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: without a stack and without sharing memory the call is a fork. This process may have other threads, whose
    // locks the child has in whatever state they were: it takes none, allocates nothing and calls nothing but the kernel.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if result == 0 {
        hold(ends);
    }
    let child = child_of(result);
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    child
}

/// The holder's whole life. What it calls are system calls and nothing else: rustix makes them without the C library.
fn hold(ends: &HolderEnds) -> ! {
    let mut go = [0; GO.len()];
    let tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() == Some(ends.parent);
    if tied && rustix::io::read(&ends.go, &mut go) == Ok(GO.len()) {
        let answer = make(ends.flags).err().map_or(0, Errno::raw_os_error);
        let _ = rustix::io::write(&ends.done, &answer.to_ne_bytes());
        loop {
            let _ = poll(&mut [], None);
        }
    }
    crate::exit_at_once(1)
}

/// As root of the user namespace, to whom what is made belongs.
fn make(flags: UnshareFlags) -> rustix::io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    // Changing the user made the kernel forget it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // SAFETY: what makes the call unsafe is a table of descriptors of one's own, which is nothing to a process that runs
    // no other code.
    unsafe { unshare_unsafe(flags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_made_while_there_are_threads() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let holder = NamespaceHolder::start(70_000_000, 65_536, UnshareFlags::NEWUTS).expect("is made");
        let map = fs::read_to_string(holder.path("uid_map")).expect("reads");
        let words: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(words, ["0", "70000000", "65536"]);
        let link = |path: &str| fs::read_link(path).expect("reads");
        assert_ne!(link(&holder.path("ns/uts")), link("/proc/self/ns/uts"));
        let path = holder.path("");
        drop(holder);
        assert!(fs::metadata(path).is_err(), "it is gone");
    }

    #[test]
    fn what_the_kernel_refuses_is_said() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let error = NamespaceHolder::start(u32::MAX - 1, 65_536, UnshareFlags::NEWUTS);
        assert!(error.is_err(), "the range is longer than there are ids");
    }
}
