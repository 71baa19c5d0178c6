//! Filters as the kernel would run them.

use super::*;

/// What the kernel would answer.
fn answer(filter: &Filter, number: u32, args: [u64; 6]) -> u32 {
    answer_on(ARCHITECTURE, filter, number, args)
}

fn answer_on(architecture: u32, filter: &Filter, number: u32, args: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_le_bytes());
    data.extend(architecture.to_le_bytes());
    data.extend([0; 8]);
    data.extend(args.iter().flat_map(|arg| arg.to_le_bytes()));
    let (mut at, mut word) = (0, 0);
    loop {
        let FilterInstruction { code, yes, no, k } = filter.0[at];
        at += 1;
        let jumped = match code {
            LOAD => {
                let offset = usize::try_from(k).expect("fits");
                word = u32::from_le_bytes(data[offset..offset + 4].try_into().expect("four bytes"));
                continue;
            }
            AND => {
                word &= k;
                continue;
            }
            RETURN => return k,
            JUMP_EQUAL => word == k,
            JUMP_GREATER => word > k,
            JUMP_GREATER_EQUAL => word >= k,
            other => panic!("no such instruction: {other}"),
        };
        at += usize::from(if jumped { yes } else { no });
    }
}

fn profile(text: &str) -> Result<Filter, SeccompError> {
    compile(&serde_json::from_str(text).expect("is JSON of a profile"))
}

#[test]
fn every_comparison_is_that_of_whole_arguments() {
    let big = 0x1_0000_0005_u64;
    for (op, fits) in [
        ("EQ", [false, true, false, false]),
        ("NE", [true, false, true, true]),
        ("LT", [true, false, false, true]),
        ("LE", [true, true, false, true]),
        ("GT", [false, false, true, false]),
        ("GE", [false, true, true, false]),
    ] {
        let text = format!(
            r#"{{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{{"names": ["read", "no_such_call"], "action": "SCMP_ACT_ALLOW",
            "args": [{{"index": 1, "value": {big}, "op": "SCMP_CMP_{op}"}}]}}]}}"#
        );
        let filter = profile(&text).expect("is fine");
        let read = calls::number("read").expect("is known");
        for (value, fits) in [big - 1, big, big + 1, 6].into_iter().zip(fits) {
            let expected = if fits { ALLOW } else { ERRNO | EPERM };
            assert_eq!(
                answer(&filter, read, [0, value, 0, 0, 0, 0]),
                expected,
                "{op} {value:#x}"
            );
        }
    }
}

#[test]
fn rules_are_tried_in_turn_and_all_checks_of_one_must_pass() {
    let filter = profile(
        r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
                {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"},
                {"index": 1, "value": 15, "valueTwo": 1, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 97, "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}]},
            {"names": ["write"], "action": "SCMP_ACT_ALLOW", "args": null}]}"#,
    )
    .expect("is fine");
    let [socket, write] = ["socket", "write"].map(|name| calls::number(name).expect("is known"));
    assert_eq!(answer(&filter, socket, [2, 0x801, 0, 0, 0, 0]), ALLOW);
    assert_eq!(answer(&filter, socket, [2, 0x802, 0, 0, 0, 0]), ERRNO | ENOSYS);
    assert_eq!(answer(&filter, socket, [40, 1, 0, 0, 0, 0]), ERRNO + 97);
    assert_eq!(answer(&filter, write, [0; 6]), ALLOW);
}

#[test]
fn the_default_depends_on_capabilities() {
    let call = |name: &str| calls::number(name).expect("is known");
    let plain = default_filter(0).expect("compiles");
    let admin = default_filter(1 << 21).expect("compiles");
    let namespaces = [0x2000_0000, 0, 0, 0, 0, 0];
    assert_eq!(answer(&plain, call("clone"), namespaces), ERRNO | EPERM);
    assert_eq!(answer(&plain, call("clone"), [0x11, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(answer(&plain, call("clone3"), [0; 6]), ERRNO | ENOSYS);
    assert_eq!(answer(&admin, call("clone"), namespaces), ALLOW);
    for (name, without, with) in [
        ("mount", ERRNO | EPERM, ALLOW),
        ("keyctl", ERRNO | EPERM, ERRNO | EPERM),
        ("read", ALLOW, ALLOW),
    ] {
        assert_eq!(
            (
                answer(&plain, call(name), [0; 6]),
                answer(&admin, call(name), [0; 6])
            ),
            (without, with),
            "{name}"
        );
    }
    assert_eq!(answer(&plain, 467, [0; 6]), ERRNO | ENOSYS);
    assert_eq!(answer(&plain, FOREIGN_NUMBERS + 1, [0; 6]), ERRNO | ENOSYS);
}

#[test]
fn profiles_that_cannot_be_kept_to_are_refused() {
    let rule = |rule: &str| {
        profile(&format!(
            r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{rule}]}}"#
        ))
        .is_err()
    };
    assert!(rule(r#"{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}"#));
    assert!(rule(
        r#"{"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5000}"#
    ));
    assert!(rule(
        r#"{"names": ["read"], "action": "SCMP_ACT_TRAP", "args": [{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]}"#
    ));
    assert!(rule(
        r#"{"names": ["read"], "action": "SCMP_ACT_TRAP", "includes": {"caps": ["CAP_BPF"]}}"#
    ));
    let many = vec!["\"read\""; 3000].join(",");
    assert!(rule(&format!(
        r#"{{"names": [{many}], "action": "SCMP_ACT_TRAP"}}"#
    )));
}

#[test]
fn the_kernel_sees_half_of_a_sockets_family_and_so_do_we() {
    let socket = calls::number("socket").expect("is known");
    let plain = default_filter(0).expect("compiles");
    for (family, expected) in [
        (2, ALLOW),
        (16, ALLOW),
        (38, ERRNO | EPERM),
        (39, ALLOW),
        (40, ERRNO | EPERM),
    ] {
        for high in [0, 1 << 32, u64::from(u32::MAX) << 32] {
            let args = [high | family, 1, 0, 0, 0, 0];
            assert_eq!(answer(&plain, socket, args), expected, "{family} {high:#x}");
        }
    }
}

#[test]
fn every_capability_opens_its_own_calls() {
    let plain = default_filter(0).expect("compiles");
    for (capability, names) in [
        (2, &["open_by_handle_at"][..]),
        (16, &["init_module", "delete_module"]),
        (18, &["chroot"]),
        (19, &["kcmp", "pidfd_getfd"]),
        (
            21,
            &[
                "mount",
                "setns",
                "unshare",
                "bpf",
                "perf_event_open",
                "syslog",
                "clone3",
            ],
        ),
        (22, &["reboot"]),
        (23, &["mbind", "set_mempolicy"]),
        (25, &["settimeofday", "clock_settime"]),
        (34, &["syslog"]),
        (38, &["perf_event_open"]),
        (39, &["bpf"]),
    ] {
        let opened = default_filter(1 << capability).expect("compiles");
        for name in names {
            let number = calls::number(name).expect("is known");
            assert_ne!(answer(&plain, number, [0; 6]), ALLOW, "{name}");
            assert_eq!(answer(&opened, number, [0; 6]), ALLOW, "{capability} {name}");
        }
        let never = calls::number("kexec_load").expect("is known");
        assert_eq!(answer(&opened, never, [0; 6]), ERRNO | EPERM);
    }
}

#[test]
fn personalities_are_those_that_only_show_something_else() {
    let personality = calls::number("personality").expect("is known");
    let plain = default_filter(0).expect("compiles");
    for value in [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff, u64::MAX] {
        assert_eq!(
            answer(&plain, personality, [value, 0, 0, 0, 0, 0]),
            ALLOW,
            "{value:#x}"
        );
    }
    // Addresses that are no longer random, and an executable stack.
    for value in [0x4_0000, 0x40_0000, 1 << 32 | 0x4_0000] {
        assert_eq!(
            answer(&plain, personality, [value, 0, 0, 0, 0, 0]),
            ERRNO | EPERM,
            "{value:#x}"
        );
    }
}

#[test]
fn calls_of_other_architectures_are_not_there() {
    let read = calls::number("read").expect("is known");
    let filter = default_filter(0).expect("compiles");
    assert_eq!(
        answer_on(0x4000_0003, &filter, read, [0; 6]),
        ERRNO | ENOSYS,
        "i386"
    );
    assert_eq!(
        answer(&filter, FOREIGN_NUMBERS + read, [0; 6]),
        ERRNO | ENOSYS,
        "x32"
    );
}

#[test]
fn every_action_of_a_profile_has_the_kernels_answer() {
    for (action, errno, expected) in [
        ("ALLOW", None, ALLOW),
        ("LOG", None, LOG),
        ("TRAP", None, TRAP),
        ("KILL", None, KILL_THREAD),
        ("KILL_THREAD", None, KILL_THREAD),
        ("KILL_PROCESS", None, KILL_PROCESS),
        ("ERRNO", None, ERRNO | EPERM),
        ("ERRNO", Some(97), ERRNO + 97),
        ("TRACE", Some(7), TRACE + 7),
    ] {
        let errno = errno.map_or("null".to_owned(), |number: u32| number.to_string());
        let filter = profile(&format!(
            r#"{{"defaultAction": "SCMP_ACT_{action}", "defaultErrnoRet": {errno}}}"#
        ));
        let read = calls::number("read").expect("is known");
        assert_eq!(
            answer(&filter.expect("is fine"), read, [0; 6]),
            expected,
            "{action}"
        );
    }
}

#[test]
fn of_conditions_on_one_argument_one_is_enough() {
    let filter = profile(
        r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
            {"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]}]}"#,
    )
    .expect("is fine");
    let socket = calls::number("socket").expect("is known");
    let family = |family| answer(&filter, socket, [family, 0, 0, 0, 0, 0]);
    assert_eq!([family(1), family(2), family(3)], [ALLOW, ALLOW, ERRNO | EPERM]);
}

#[test]
fn what_is_not_known_to_be_harmless_is_refused() {
    let plain = default_filter(0).expect("compiles");
    for name in [
        "vserver",
        "create_module",
        "query_module",
        "tuxcall",
        "migrate_pages",
        "keyctl",
        "userfaultfd",
    ] {
        if let Some(number) = calls::number(name) {
            assert_eq!(answer(&plain, number, [0; 6]), ERRNO | EPERM, "{name}");
        }
    }
}

/// CVE-2023-2431: a profile without a name or without content is taken for none, and the container runs unfiltered.
#[test]
fn an_empty_profile_is_not_no_profile() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in [
        ("empty", ""),
        ("object", "{}"),
        ("null", "null"),
        ("action", r#"{"defaultAction": ""}"#),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("writes");
        assert!(filter_from_file(&path).is_err(), "{name}");
    }
    assert!(filter_from_file(directory.path()).is_err(), "a directory");
    assert!(filter_from_file(Path::new("")).is_err(), "no name");
}
