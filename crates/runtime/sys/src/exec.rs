//! Becoming another program, or ending, in a process made by [`fork`](crate::fork).

use std::{ffi::CString, io, mem, ptr};

use crate::signal::unblock_all;

/// Runs the program in place of this process. Returns only if that is impossible.
pub fn replace_process(program: &CString, args: &[CString], env: &[CString]) -> io::Error {
    let list = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts
            .iter()
            .map(|text| text.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let (arguments, variables) = (list(args), list(env));
    // SAFETY: both lists end with a null pointer, and all strings, which end with their zero byte, outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process at once, without running anything that the process it was copied from has registered.
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: it does not return, and releases nothing but what the kernel holds.
    unsafe { libc::_exit(code) }
}

/// Gives every signal its default effect and blocks none, as a new program expects.
pub fn reset_signals() -> io::Result<()> {
    // SAFETY: the structure is plain data, for which zeroes are a valid value: the default handler, an empty mask.
    let default: libc::sigaction = unsafe { mem::zeroed() };
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: the structure lives through the call and installs no code. SIGKILL, SIGSTOP and those that the C
        // library keeps to itself are refused, which is right.
        unsafe { libc::sigaction(number, &raw const default, ptr::null_mut()) };
    }
    unblock_all()
}
