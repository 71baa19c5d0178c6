//! Programs of extended BPF that decide which devices a cgroup may use.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

// Numbers of the kernel's interface.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;

/// One instruction, as the kernel has it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpfInstruction {
    pub code: u8,
    /// The destination in the lower half, the source in the upper one.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

/// What the kernel wants to know to load a program; what it may know besides is zero.
#[repr(C)]
struct LoadArguments {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    program_flags: u32,
    program_name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct AttachArguments {
    target: i32,
    program: i32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
}

/// Lets the program decide about every device that a process of the cgroup opens or makes, besides those of the cgroups
/// above it. It stays until the cgroup is removed. `cgroup` is an open directory of version 2.
pub fn attach_device_filter(cgroup: impl AsFd, program: &[BpfInstruction]) -> io::Result<()> {
    let program = load(program)?;
    let arguments = AttachArguments {
        target: cgroup.as_fd().as_raw_fd(),
        program: program.as_raw_fd(),
        attach_type: CGROUP_DEVICE,
        flags: ALLOW_MULTI,
        replaced: 0,
    };
    // SAFETY: the structure is laid out as the kernel has it for this command, initialised, and lives through the call,
    // which only reads it; its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_ATTACH,
            &raw const arguments,
            size_of::<AttachArguments>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn load(program: &[BpfInstruction]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let arguments = LoadArguments {
        program_type: PROG_TYPE_CGROUP_DEVICE,
        instruction_count: u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        instructions: program.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        program_flags: 0,
        program_name: *b"pulselet_device\0",
        interface: 0,
        attach_type: CGROUP_DEVICE,
    };
    // SAFETY: the structure is laid out as the kernel has it for this command and initialised; it, the instructions (as
    // many as it says) and the license, which ends with its zero byte, live through the call, which only reads them. The
    // kernel verifies the program before it ever runs it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw const arguments,
            size_of::<LoadArguments>(),
        )
    };
    let number = i32::try_from(result).unwrap_or(-1);
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
