//! The profile behind `RuntimeDefault`.

use super::{ALLOW, Check, Comparison, ENOSYS, EPERM, ERRNO, Filter, Program, SeccompError, calls};

/// Numbers of capabilities that open some calls.
const DAC_READ_SEARCH: u32 = 2;
const SYS_MODULE: u32 = 16;
const SYS_RAWIO: u32 = 17;
const SYS_CHROOT: u32 = 18;
const SYS_PTRACE: u32 = 19;
const SYS_PACCT: u32 = 20;
const SYS_ADMIN: u32 = 21;
const SYS_BOOT: u32 = 22;
const SYS_NICE: u32 = 23;
const SYS_TIME: u32 = 25;
const SYS_TTY_CONFIG: u32 = 26;
const SYSLOG: u32 = 34;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Refused whatever a container may do: old, dangerous or about the whole machine.
const NEVER: &[&str] = &[
    "_sysctl",
    "add_key",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "move_pages",
    "nfsservctl",
    "pivot_root",
    "request_key",
    "swapoff",
    "swapon",
    "sysfs",
    "uselib",
    "userfaultfd",
    "ustat",
];

/// Refused unless the container has one of the capabilities.
const UNLESS: &[(&[u32], &[&str])] = &[
    (&[DAC_READ_SEARCH], &["open_by_handle_at"]),
    (&[SYS_MODULE], &["delete_module", "finit_module", "init_module"]),
    (&[SYS_RAWIO], &["ioperm", "iopl"]),
    (&[SYS_CHROOT], &["chroot"]),
    (&[SYS_PTRACE], &["kcmp", "pidfd_getfd", "process_madvise"]),
    (&[SYS_PACCT], &["acct"]),
    (&[SYS_BOOT], &["reboot"]),
    (
        &[SYS_NICE],
        &[
            "get_mempolicy",
            "mbind",
            "set_mempolicy",
            "set_mempolicy_home_node",
        ],
    ),
    (&[SYS_TIME], &["clock_settime", "settimeofday"]),
    (&[SYS_TTY_CONFIG], &["vhangup"]),
    (&[SYS_ADMIN, SYSLOG], &["syslog"]),
    (&[SYS_ADMIN, PERFMON], &["perf_event_open"]),
    (&[SYS_ADMIN, BPF], &["bpf"]),
    (
        &[SYS_ADMIN],
        &[
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "open_tree_attr",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "umount2",
            "unshare",
        ],
    ),
];

/// Flags of `clone` that make namespaces.
const NEW_NAMESPACES: u64 = 0x7e02_0000;

/// The address family of virtual machines, which no namespace separates.
const AF_VSOCK: u64 = 40;

/// Values of `personality` that change no more than what programs are shown.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

pub(crate) fn default_filter(capabilities: u64) -> Result<Filter, SeccompError> {
    let has = |number: &u32| capabilities & (1 << number) != 0;
    let mut program = Program::new();
    program.bound(calls::LAST);
    let conditional = UNLESS.iter().filter(|(needed, _)| !needed.iter().any(has));
    let refused = NEVER
        .iter()
        .chain(conditional.flat_map(|(_, names)| names.iter()));
    for number in refused.filter_map(|name| calls::number(name)) {
        program.rule(number, &[], ERRNO | EPERM);
    }
    if !has(&SYS_ADMIN) {
        refuse_namespaces(&mut program);
    }
    let equal = |value| Check {
        index: 0,
        mask: u64::MAX,
        comparison: Comparison::Equal,
        value,
    };
    if let Some(socket) = calls::number("socket") {
        program.rule(socket, &[equal(AF_VSOCK)], ERRNO | EPERM);
    }
    if let Some(personality) = calls::number("personality") {
        let half = |value| Check {
            mask: 0xffff_ffff,
            ..equal(value)
        };
        for value in PERSONALITIES {
            program.rule(personality, &[half(value)], ALLOW);
        }
        program.rule(personality, &[], ERRNO | EPERM);
    }
    program.finish(ALLOW)
}

/// The flags of `clone3` are out of a filter's sight. Without it the C library uses `clone`.
fn refuse_namespaces(program: &mut Program) {
    let none = Check {
        index: 0,
        mask: NEW_NAMESPACES,
        comparison: Comparison::NotEqual,
        value: 0,
    };
    if let Some(clone) = calls::number("clone") {
        program.rule(clone, &[none], ERRNO | EPERM);
    }
    if let Some(clone3) = calls::number("clone3") {
        program.rule(clone3, &[], ERRNO | ENOSYS);
    }
}
