//! Forking a process that has one thread.

use std::{fs, io};

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
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "cannot fork a process with {threads} threads"
        )));
    }
    // SAFETY: this process has exactly one thread, the caller's, so the child is a whole copy and may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent {
            child: Pid::from_raw(pid).expect("a child's id is positive"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_forked() {
        // The test harness runs tests on threads of their own.
        let error = fork()
            .map(|_| ())
            .expect_err("this process has at least two threads");
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
