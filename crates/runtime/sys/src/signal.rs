//! Sending any signal by number, and learning of ended children by a descriptor.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use rustix::process::Pid;

/// Sends a signal by its number, real-time ones included. A process that is gone is not an error: what the signal
/// should have brought about may have happened by itself.
pub fn send_signal(pid: Pid, number: i32) -> io::Result<()> {
    // SAFETY: kill takes plain numbers and touches no memory of this process.
    if unsafe { libc::kill(pid.as_raw_nonzero().get(), number) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ESRCH) {
        Ok(())
    } else {
        Err(error)
    }
}

/// Becomes readable when a child ended. SIGCHLD is blocked while it exists and after; a program that is run gets it
/// unblocked by [`Spawn`](crate::Spawn).
#[derive(Debug)]
pub struct ChildSignals(OwnedFd);

impl ChildSignals {
    pub fn new() -> io::Result<Self> {
        let mask = block(&[libc::SIGCHLD])?;
        // SAFETY: -1 asks for a new descriptor; the mask is initialised and lives through the call.
        let fd = unsafe { libc::signalfd(-1, &raw const mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Forgets the signals that have come, so that the next one wakes again.
    pub fn clear(&self) {
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>() * 4];
        while rustix::io::read(&self.0, &mut buffer).is_ok_and(|count| count > 0) {}
    }
}

impl AsFd for ChildSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks the signals by which users, terminals and service managers ask a process to leave, for this process and its
/// copies. A program that is run gets them unblocked by [`Spawn`](crate::Spawn).
pub fn block_termination() -> io::Result<()> {
    block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT]).map(drop)
}

/// From now on the kernel waits for this process's children in its place: they are gone when they end.
pub fn ignore_children() -> io::Result<()> {
    treat_children(libc::SIG_IGN)
}

/// Undoes [`ignore_children`]: this process waits for its children itself.
pub fn heed_children() -> io::Result<()> {
    treat_children(libc::SIG_DFL)
}

fn treat_children(effect: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: the structure is plain data, for which zeroes are a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = effect;
    // SAFETY: the structure lives through the call and installs no code; a null old action is allowed.
    if unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether SIGTERM was sent to this process while it was blocked.
pub fn termination_is_pending() -> bool {
    // SAFETY: a signal set is plain data, for which zeroes are a valid value.
    let mut pending: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set is ours and lives through the call.
    if unsafe { libc::sigpending(&raw mut pending) } != 0 {
        return false;
    }
    // SAFETY: the set was filled in by the call above; a wrong number would be refused.
    unsafe { libc::sigismember(&raw const pending, libc::SIGTERM) == 1 }
}

/// Blocks none. For the moment between fork and exec: it makes one system call and allocates nothing.
pub(crate) fn unblock_all() -> io::Result<()> {
    // SAFETY: a signal set is plain data, for which zeroes are a valid value: the empty set.
    let empty: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the mask is initialised and lives through the call; a null old mask is allowed.
    if unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Adds signals to those blocked and returns them as a set.
fn block(signals: &[libc::c_int]) -> io::Result<libc::sigset_t> {
    // SAFETY: a signal set is plain data, for which zeroes are a valid value.
    let mut mask: libc::sigset_t = unsafe { mem::zeroed() };
    for signal in signals {
        // SAFETY: the set is ours and initialised; a wrong number would be refused.
        unsafe { libc::sigaddset(&raw mut mask, *signal) };
    }
    // SAFETY: the mask is initialised and lives through the call; a null old mask is allowed.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const mask, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(mask)
}
