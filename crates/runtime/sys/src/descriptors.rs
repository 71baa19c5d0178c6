//! Open descriptors of this process as a whole.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// Marks every descriptor from `first` on close-on-exec, so that none that this process inherited by accident reaches
/// a program it runs.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    let first = libc::c_uint::try_from(first).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call only sets a flag on descriptors; none is closed, so nobody's ownership is touched.
    let result =
        unsafe { libc::close_range(first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Spends the rest of this process on `work`, which uses no descriptor, and ends with the code it returns. Everything
/// from `first` on is closed before: a copy of another process that only waits must not keep that one's pipes open.
pub fn work_without_descriptors(first: RawFd, work: impl FnOnce() -> i32) -> ! {
    if let Ok(first) = libc::c_uint::try_from(first) {
        // SAFETY: nobody who owns one of the descriptors runs again: this function does not return, and the process
        // ends without dropping anything.
        unsafe { libc::close_range(first, libc::c_uint::MAX, 0) };
    }
    crate::exit_at_once(work())
}

/// The same with one descriptor that stays open and goes to `work`, and with the standard streams.
pub fn work_with_one_descriptor<T: AsFd>(kept: &mut T, work: impl FnOnce(&mut T) -> i32) -> ! {
    let number = kept.as_fd().as_raw_fd().cast_unsigned();
    let first = libc::STDERR_FILENO.cast_unsigned() + 1;
    if number > first {
        // SAFETY: as above.
        unsafe { libc::close_range(first, number - 1, 0) };
    }
    // SAFETY: as above.
    unsafe { libc::close_range(first.max(number + 1), libc::c_uint::MAX, 0) };
    crate::exit_at_once(work(kept))
}
