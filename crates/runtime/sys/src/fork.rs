//! Forking a process that has one thread.

use std::{io, marker::PhantomData};

use rustix::process::Pid;

/// On which side of the fork the caller goes on.
#[derive(Debug)]
pub enum Fork {
    Parent { child: Pid },
    Child,
}

/// Splits this process in two. With more than one thread it is an error: in the child the others would have vanished in
/// the middle of whatever they did, locks held.
pub fn fork() -> io::Result<Fork> {
    SoleThread::check()?.fork()
}

/// A process that has one thread and forks more than once, also where it cannot look at itself any more because /proc
/// is another one's. Whoever has it starts no threads. A child has it from its parent.
#[derive(Debug)]
pub struct SoleThread {
    /// It says something about the thread it is on, and stays there.
    on_this_thread: PhantomData<*const ()>,
}

impl SoleThread {
    pub fn check() -> io::Result<Self> {
        // A process with other threads cannot leave them; for one without, there is nothing to leave. It is one call, where
        // a look at /proc is many.
        // SAFETY: takes a plain number; it succeeds only if it changes nothing.
        if unsafe { libc::unshare(libc::CLONE_THREAD) } != 0 {
            let error = io::Error::last_os_error();
            let threads = error.raw_os_error() == Some(libc::EINVAL);
            return Err(if threads {
                io::Error::other("cannot fork a process with other threads")
            } else {
                error
            });
        }
        Ok(Self {
            on_this_thread: PhantomData,
        })
    }

    pub fn fork(&self) -> io::Result<Fork> {
        // SAFETY: this process has exactly one thread, the caller's, so the child is a whole copy and may do anything.
        forked(unsafe { libc::fork() }.into())
    }

    /// The same, but the child is this process's parent's: that one waits for it, and this process may end.
    pub fn fork_sibling(&self) -> io::Result<Fork> {
        let flags = libc::CLONE_PARENT | libc::SIGCHLD;
        // SAFETY: without a stack and without sharing memory the call is a fork, and as there the child is a whole copy.
        // The C library is not told: it would know the child's thread by a wrong number, which nothing here asks for.
        forked(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })
    }
}

fn forked(result: libc::c_long) -> io::Result<Fork> {
    match result {
        0 => Ok(Fork::Child),
        result => child_of(result).map(|child| Fork::Parent { child }),
    }
}

/// What a call that makes a process has returned to the parent: the child, or the failure that is the thread's last.
///
/// A failure is the number -1, and a signal to that one is a signal to every process of the machine.
pub(crate) fn child_of(result: libc::c_long) -> io::Result<Pid> {
    let child = i32::try_from(result).ok().and_then(process_id);
    child.ok_or_else(io::Error::last_os_error)
}

/// A process by its number. Numbers below one name groups of processes, or all there are: they are nobody's.
pub fn process_id(number: i32) -> Option<Pid> {
    (number > 0).then(|| Pid::from_raw(number)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_fork_is_no_process() {
        // Taken for a process and killed, -1 would be every process of the machine.
        assert!(child_of(-1).is_err());
        assert!(forked(-1).is_err());
        assert_eq!(process_id(-1), None);
        assert_eq!(process_id(0), None);
        assert!(process_id(1).is_some());
    }

    #[test]
    fn a_process_with_threads_is_not_forked() {
        // The test harness runs tests on threads of their own.
        let error = fork()
            .map(|_| ())
            .expect_err("this process has at least two threads");
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
