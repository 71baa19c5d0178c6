//! New namespaces that belong to a new user namespace, made for a process with many threads.
//!
//! Neither a user namespace nor anything that is to belong to it can be made by a process with more than one thread. So
//! a copy of the calling thread makes them and holds them until the caller has taken hold of them by their files.

use std::{
    fs::{self, File},
    io::{self, PipeReader, PipeWriter, Read, Write},
    mem,
    os::fd::{AsRawFd, RawFd},
    ptr,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    thread::UnshareFlags,
};

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
            go_writer: go.as_raw_fd(),
            done: done_writer,
            flags: others.bits(),
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

/// The holder's ends of the pipes, and what it makes.
struct HolderEnds {
    go: PipeReader,
    /// The caller's end, of which the copy is closed.
    go_writer: RawFd,
    done: PipeWriter,
    flags: u32,
}

/// Splits off the holder. No handler of the caller's signals ever runs in it.
fn clone(ends: &HolderEnds) -> io::Result<Pid> {
    // SAFETY: both structures are plain data, for which zeroes are valid; the calls only fill and read them.
    let (all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe {
        let mut all = mem::zeroed();
        libc::sigfillset(&raw mut all);
        (all, mem::zeroed())
    };
    // SAFETY: both sets live through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: without a stack and without sharing memory the call is a fork. This process may have other threads, whose
    // locks the child has in whatever state they were: it calls nothing but the kernel.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if result == 0 {
        hold(ends);
    }
    let failure = io::Error::last_os_error();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    i32::try_from(result).ok().and_then(Pid::from_raw).ok_or(failure)
}

/// The holder's whole life. Only system calls are made: nothing is allocated and no lock is taken.
fn hold(ends: &HolderEnds) -> ! {
    let mut go = [0_u8; 1];
    // SAFETY: every call takes numbers, or memory of this function that lives through it. The descriptor that is closed
    // is this process's copy, and its owner does not run here.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_close, ends.go_writer);
        let read = libc::syscall(libc::SYS_read, ends.go.as_raw_fd(), go.as_mut_ptr(), go.len());
        if read != 1 {
            libc::_exit(1);
        }
        // What is made belongs to the namespace's root.
        let failed = libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) != 0
            || libc::syscall(libc::SYS_setresgid, 0, 0, 0) != 0
            || libc::syscall(libc::SYS_setresuid, 0, 0, 0) != 0
            // Changing the user made the kernel forget it.
            || libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
            || libc::syscall(libc::SYS_unshare, ends.flags) != 0;
        let answer = if failed { *libc::__errno_location() } else { 0 }.to_ne_bytes();
        libc::syscall(
            libc::SYS_write,
            ends.done.as_raw_fd(),
            answer.as_ptr(),
            answer.len(),
        );
        loop {
            libc::syscall(
                libc::SYS_ppoll,
                ptr::null::<libc::pollfd>(),
                0,
                ptr::null::<u8>(),
                ptr::null::<u8>(),
                0,
            );
        }
    }
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
