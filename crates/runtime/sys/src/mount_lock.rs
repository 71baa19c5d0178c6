//! Mounts that nobody can take away any more, however many rights he has on the machine.
//!
//! The kernel locks a mount when it is copied to a mount namespace whose owner has fewer rights than that of the
//! original: it can then be neither unmounted, moved nor made writable, and what it covers cannot be shown elsewhere. So
//! a child makes such a copy, which belongs to a user namespace without users, and the caller goes there. The caller
//! stays who it is.

use std::{
    convert::Infallible,
    io::{self, PipeWriter, Read},
    os::fd::AsFd,
};

use rustix::{
    event::poll,
    fs::Uid,
    process::{
        PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, set_parent_process_death_signal, waitpid,
    },
    thread::{
        CapabilitiesSecureBits, ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces,
        set_capabilities_secure_bits, set_thread_res_uid, unshare_unsafe,
    },
};

use crate::{Fork, SoleThread, exit_at_once};

/// Whom the user namespace belongs to. Whoever has this number has all rights in it, so it is one that no process has: the
/// largest that the kernel knows.
const OWNER: u32 = u32::MAX - 1;

/// Takes this process to a copy of its mount namespace in which everything that is mounted is locked. Its root and working
/// directory become the root of that. It needs the rights to mount, to change users and to look into its own children.
pub fn lock_mounts(sole: &SoleThread) -> io::Result<()> {
    let (mut reader, writer) = io::pipe()?;
    match sole.fork()? {
        Fork::Child => {
            let Err(error) = copy_mounts(&writer);
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            let _ = rustix::io::write(&writer, &number.to_ne_bytes());
            exit_at_once(1)
        }
        Fork::Parent { child } => {
            drop(writer);
            let entered = read_answer(&mut reader)
                .and_then(|()| Ok(pidfd_open(child, PidfdFlags::empty())?))
                .and_then(|copy| {
                    Ok(move_into_thread_name_spaces(
                        copy.as_fd(),
                        ThreadNameSpaceType::MOUNT,
                    )?)
                });
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
            entered
        }
    }
}

fn read_answer(reader: &mut impl Read) -> io::Result<()> {
    let mut answer = [0; size_of::<i32>()];
    reader.read_exact(&mut answer)?;
    match i32::from_ne_bytes(answer) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// In the child: makes the copy and holds it until it is killed. Returns only why it cannot.
fn copy_mounts(writer: &PipeWriter) -> io::Result<Infallible> {
    // The rights stay when the user changes.
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    let owner = Uid::from_raw(OWNER);
    set_thread_res_uid(owner, owner, owner)?;
    // After that: changing the user made the kernel forget it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // SAFETY: what makes the call unsafe is a table of descriptors of one's own, which is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    rustix::io::write(writer, &0_i32.to_ne_bytes())?;
    loop {
        let _ = poll(&mut [], None);
    }
}
