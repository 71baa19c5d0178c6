//! Capabilities by name: the default set and a pod's changes to it.

use pulselet_runtime::Capabilities;

/// By the kernel's numbers.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a shim and its forks use on their way into a container, whatever that gets: to enter namespaces and mount, to
/// become a user, to make files and devices, to look after processes.
const OF_SHIM: [&str; 15] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_ADMIN",
    "SYS_RESOURCE",
    "MKNOD",
    "SETFCAP",
];

/// What every container gets unless its pod says otherwise, the same as with other runtimes.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// How many capabilities the kernels this was written for have; newer ones may have more.
pub(crate) const COUNT: usize = NAMES.len();

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown capability {0:?}")]
pub(crate) struct UnknownCapability(String);

pub(crate) fn all() -> u64 {
    (1 << COUNT) - 1
}

/// The default set with a pod's changes: dropped first, so that `drop: [ALL]` leaves just what is added.
pub(crate) fn effective(changes: &Capabilities) -> Result<u64, UnknownCapability> {
    let mut set = 0;
    for name in DEFAULT {
        set |= bits(name)?;
    }
    for name in &changes.drop {
        set &= !bits(name)?;
    }
    for name in &changes.add {
        set |= bits(name)?;
    }
    Ok(set)
}

/// What the shim of a container with these capabilities keeps.
pub(crate) fn of_shim(of_container: u64) -> u64 {
    let own = OF_SHIM.iter().filter_map(|name| bits(name).ok());
    own.fold(of_container, |set, bit| set | bit)
}

fn bits(name: &str) -> Result<u64, UnknownCapability> {
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if plain == "ALL" {
        return Ok(all());
    }
    NAMES
        .iter()
        .position(|known| *known == plain)
        .map(|number| 1 << number)
        .ok_or_else(|| UnknownCapability(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(add: &[&str], drop: &[&str]) -> Result<u64, UnknownCapability> {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        effective(&Capabilities {
            add: list(add),
            drop: list(drop),
        })
    }

    #[test]
    fn the_default_set_is_the_usual_one() {
        // As /proc/<pid>/status shows it for a container of other runtimes.
        assert_eq!(changed(&[], &[]), Ok(0xa804_25fb));
    }

    #[test]
    fn a_shim_keeps_what_it_uses_and_what_its_container_has() {
        let of_shim = of_shim(0);
        assert_eq!(of_shim.count_ones() as usize, OF_SHIM.len(), "all are known");
        for name in [
            "SYS_MODULE",
            "SYS_RAWIO",
            "SYS_BOOT",
            "SYS_TIME",
            "NET_ADMIN",
            "NET_RAW",
            "BPF",
            "SYSLOG",
        ] {
            let bit = bits(name).expect("is known");
            assert_eq!((of_shim & bit, super::of_shim(bit) & bit), (0, bit), "{name}");
        }
    }

    #[test]
    fn changes_apply_in_any_spelling() {
        assert_eq!(changed(&["CAP_net_admin"], &["ALL"]), Ok(1 << 12));
        assert_eq!(changed(&["ALL"], &[]), Ok(all()));
        assert_eq!(changed(&[], &["CHOWN"]), Ok(0xa804_25fa));
        assert_eq!(changed(&["FLY"], &[]), Err(UnknownCapability("FLY".into())));
    }
}
