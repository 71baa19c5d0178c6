//! Taking on a container's identity: user, groups, capabilities, `no_new_privs`. The last thing before a program is run,
//! the same for the main process and for commands beside it.

use std::io;

use pulselet_sys::{become_user, install_filter};
use rustix::{
    fs::{Gid, Uid, fchown},
    process::{Signal, set_parent_process_death_signal},
    thread::{
        CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
        set_no_new_privs,
    },
};

use crate::{launch::Confinement, user::User};

/// Capabilities the kernel could ever have.
const MAX_CAPABILITIES: u32 = 64;

/// Major number of /dev/null and its kind, whose owner must not change.
const MEMORY_DEVICES: u32 = 1;

/// Becomes the user, for good, with no more rights than the confinement gives.
pub(crate) fn assume(user: &User, confinement: &Confinement) -> io::Result<()> {
    give_streams_to(user);
    let allowed = CapabilitySet::from_bits_retain(confinement.capabilities);
    bound_capabilities(allowed)?;
    // While there is still the right to; with no_new_privs none is needed, and the last moment is best.
    if !confinement.no_new_privs {
        confine(confinement)?;
    }
    become_user(&user.credentials())?;
    // Another user than root has lost them all by that, and root gets no more than the bound when a program is run.
    let held = capabilities(None)?.permitted & allowed;
    let sets = CapabilitySets {
        effective: held,
        permitted: held,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    // Changing the user made the kernel forget it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if confinement.no_new_privs {
        set_no_new_privs(true)?;
        confine(confinement)?;
    }
    Ok(())
}

fn confine(confinement: &Confinement) -> io::Result<()> {
    confinement
        .seccomp
        .as_ref()
        .map_or(Ok(()), |filter| install_filter(&filter.0))
}

/// Takes away what may never be had again, by whatever program is run.
fn bound_capabilities(allowed: CapabilitySet) -> io::Result<()> {
    for number in 0..MAX_CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if allowed.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // This kernel's last one was before it.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Lets the user open its streams again by name, as /dev/stdout does.
fn give_streams_to(user: &User) {
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        let shared = rustix::fs::fstat(stream).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
                && rustix::fs::major(stat.st_rdev) == MEMORY_DEVICES
        });
        if !shared {
            // A stream that cannot be given away can still be used.
            let _ = fchown(
                stream,
                Some(Uid::from_raw(user.uid)),
                Some(Gid::from_raw(user.gid)),
            );
        }
    }
}
