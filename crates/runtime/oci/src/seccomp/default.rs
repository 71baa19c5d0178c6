//! The profile behind `RuntimeDefault`: system calls that other runtimes' default profiles allow too.
//!
//! What is not in a list here is refused. Some calls depend on the container's capabilities, some on their arguments.
//! Arguments that the kernel takes as 32 bits are compared as such: the upper half is not seen by it either.

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

/// The newest call that was judged. Newer ones are answered as by a kernel that does not have them: programs then do
/// without.
const NEWEST: u32 = 466;

/// Calls that every container may make, by what they are about. Each architecture has some of them.
const ALWAYS: &[&str] = &[
    // Files and directories.
    "access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 \
     fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync flock fstat fstatfs fsync ftruncate \
     futimesat getcwd getdents getdents64 ioctl lchown link linkat lseek lstat mkdir mkdirat mknod mknodat \
     name_to_handle_at newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead \
     readlink readlinkat readv rename renameat renameat2 rmdir sendfile splice stat statfs statx symlink symlinkat sync \
     sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev",
    // Attributes, mounts as they are, and watching.
    "fanotify_mark fgetxattr flistxattr fremovexattr fsetxattr getxattr getxattrat inotify_add_watch inotify_init \
     inotify_init1 inotify_rm_watch lgetxattr listmount listxattr listxattrat llistxattr lremovexattr lsetxattr \
     removexattr removexattrat setxattr setxattrat statmount",
    // Memory.
    "brk cachestat madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap \
     mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease \
     remap_file_pages",
    // Processes, threads and scheduling.
    "arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getpgid getpgrp \
     getpid getppid getpriority getrlimit getrusage getsid gettid ioprio_get ioprio_set modify_ldt pidfd_open \
     pidfd_send_signal prctl prlimit64 process_vm_readv process_vm_writev ptrace restart_syscall rseq sched_get_priority_max \
     sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval \
     sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield set_robust_list set_thread_area \
     set_tid_address setpgid setpriority setrlimit setsid sysinfo times uname uretprobe vfork wait4 waitid",
    // Users, groups and restrictions of oneself.
    "getegid geteuid getgid getgroups getresgid getresuid getuid landlock_add_rule landlock_create_ruleset \
     landlock_restrict_self lsm_get_self_attr lsm_list_modules lsm_set_self_attr seccomp setfsgid setfsuid setgid \
     setgroups setregid setresgid setresuid setreuid setuid",
    // Signals.
    "kill pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
     rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill",
    // Time.
    "adjtimex alarm clock_adjtime clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer \
     time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime \
     timerfd_settime",
    // Waiting, and input and output in the background.
    "epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd \
     eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake io_cancel io_destroy io_getevents io_pgetevents \
     io_setup io_submit poll ppoll pselect6 select",
    // Talking to others, and random numbers.
    "accept accept4 bind connect getpeername getrandom getsockname getsockopt listen mq_getsetattr mq_notify mq_open \
     mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 recvfrom recvmmsg recvmsg semctl semget \
     semop semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown socketpair",
];

/// Calls for containers with one of the capabilities.
const WITH: &[(&[u32], &str)] = &[
    (&[DAC_READ_SEARCH], "open_by_handle_at"),
    (&[SYS_MODULE], "delete_module finit_module init_module"),
    (&[SYS_RAWIO], "ioperm iopl"),
    (&[SYS_CHROOT], "chroot"),
    (&[SYS_PTRACE], "kcmp pidfd_getfd process_madvise"),
    (&[SYS_PACCT], "acct"),
    (&[SYS_BOOT], "reboot"),
    (
        &[SYS_NICE],
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    (&[SYS_TIME], "clock_settime settimeofday"),
    (&[SYS_TTY_CONFIG], "vhangup"),
    (&[SYS_ADMIN, SYSLOG], "syslog"),
    (&[SYS_ADMIN, PERFMON], "perf_event_open"),
    (&[SYS_ADMIN, BPF], "bpf"),
    (
        &[SYS_ADMIN],
        "clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount open_tree \
         quotactl quotactl_fd setdomainname sethostname setns umount2 unshare",
    ),
];

/// Flags of `clone` that make namespaces.
const NEW_NAMESPACES: u64 = 0x7e02_0000;

/// Address families that no namespace separates: the kernel's cryptography, and the host of a virtual machine.
const AF_ALG: u64 = 38;
const AF_VSOCK: u64 = 40;

/// Values of `personality` that change no more than what programs are shown.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The half of an argument that the kernel sees of an `int`.
const HALF: u64 = 0xffff_ffff;

pub(crate) fn default_filter(capabilities: u64) -> Result<Filter, SeccompError> {
    let has = |number: &u32| capabilities & (1 << number) != 0;
    let mut program = Program::new();
    program.bound(NEWEST);
    if !has(&SYS_ADMIN) {
        allow_clone(&mut program);
    }
    let [alg, vsock] = [AF_ALG, AF_VSOCK].map(|family| first_argument(HALF, Comparison::NotEqual, family));
    allow_if(&mut program, "socket", &[alg, vsock]);
    for value in PERSONALITIES {
        let same = first_argument(HALF, Comparison::Equal, value);
        allow_if(&mut program, "personality", &[same]);
    }
    let opened = WITH.iter().filter(|(needed, _)| needed.iter().any(has));
    let names = ALWAYS.iter().chain(opened.map(|(_, names)| names));
    let numbers = names
        .flat_map(|names| names.split_ascii_whitespace())
        .filter_map(calls::number);
    program.allow(numbers.collect());
    program.finish(ERRNO | EPERM)
}

/// Without new namespaces. The flags of `clone3` are out of a filter's sight; without it the C library uses `clone`.
fn allow_clone(program: &mut Program) {
    let none = first_argument(NEW_NAMESPACES, Comparison::Equal, 0);
    allow_if(program, "clone", &[none]);
    if let Some(clone3) = calls::number("clone3") {
        program.rule(clone3, &[], ERRNO | ENOSYS);
    }
}

fn allow_if(program: &mut Program, name: &str, checks: &[Check]) {
    if let Some(number) = calls::number(name) {
        program.rule(number, checks, ALLOW);
    }
}

fn first_argument(mask: u64, comparison: Comparison, value: u64) -> Check {
    Check {
        index: 0,
        mask,
        comparison,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_calls_and_each_is_there_once() {
        let conditional = WITH.iter().map(|(_, names)| names);
        let all: Vec<&str> = ALWAYS
            .iter()
            .chain(conditional)
            .flat_map(|names| names.split_ascii_whitespace())
            .collect();
        for name in &all {
            assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{name}");
            if cfg!(target_arch = "x86_64") {
                assert!(
                    calls::number(name).is_some_and(|number| number <= NEWEST),
                    "{name}"
                );
            }
        }
    }
}
