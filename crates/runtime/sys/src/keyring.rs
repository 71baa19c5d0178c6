//! Session keyrings: where a process's keys are looked up.

use std::{ffi::CStr, io};

// Numbers of the kernel's interface.
const JOIN_SESSION_KEYRING: libc::c_int = 1;
const SET_PERMISSIONS: libc::c_int = 5;

/// Everything to whoever has it, and to its owner what is needed to join it by name.
const PERMISSIONS: u32 = 0x3f00_0000 | 0x001b_0000;

/// Gives this process the session keyring of that name, which is made if it is missing.
pub fn join_session_keyring(name: &CStr) -> io::Result<()> {
    // SAFETY: the name ends with its zero byte and lives through the call, which only reads it.
    let serial = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, name.as_ptr()) };
    if serial < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes plain numbers and touches no memory of this process.
    if unsafe { libc::syscall(libc::SYS_keyctl, SET_PERMISSIONS, serial, PERMISSIONS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
