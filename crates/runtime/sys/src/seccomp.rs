//! Giving a process a filter of system calls.

use std::io;

use serde::{Deserialize, Serialize};

/// One instruction of classic BPF, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterInstruction {
    pub code: u16,
    /// Instructions skipped when a comparison is true.
    pub yes: u8,
    /// And when it is false.
    pub no: u8,
    pub k: u32,
}

/// Confines this process, for good. It needs the right to administrate the system, or `no_new_privs`.
pub fn install_filter(program: &[FilterInstruction]) -> io::Result<()> {
    let instructions: Vec<libc::sock_filter> = program
        .iter()
        .map(|instruction| libc::sock_filter {
            code: instruction.code,
            jt: instruction.yes,
            jf: instruction.no,
            k: instruction.k,
        })
        .collect();
    let length = u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog {
        len: length,
        filter: instructions.as_ptr().cast_mut(),
    };
    // SAFETY: the program points to as many instructions as it says, which live through the call; the kernel copies them
    // and refuses what is not a valid program.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
