use super::*;

fn claim(class: QosClass, cpu_millis: u64) -> PodClaim {
    PodClaim { class, cpu_millis }
}

/// Plain files in place of the kernel's: what is written can be read again.
fn on_files(root: &Path) -> PodCgroups {
    PodCgroups::new(
        Hierarchies::V2(root.to_owned()),
        vec![root.to_owned()],
        "node".into(),
    )
}

#[test]
fn a_pod_is_below_its_class_and_has_its_limits() {
    let directory = tempfile::tempdir().expect("a directory");
    let cgroups = on_files(directory.path());
    let limits = Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_limit: Some(1 << 20),
        ..Resources::default()
    };
    for (class, expected) in [
        (QosClass::Guaranteed, "node/podu-1"),
        (QosClass::Burstable, "node/burstable/podu-1"),
        (QosClass::BestEffort, "node/besteffort/podu-1"),
    ] {
        let path = cgroups.make("u-1", claim(class, 500), &limits).expect("is made");
        assert_eq!(path, Path::new(expected));
        let read = |file: &str| fs::read_to_string(directory.path().join(&path).join(file)).expect("written");
        assert_eq!(
            (read("cpu.weight"), read("cpu.max"), read("memory.max")),
            ("20".into(), "50000 100000".into(), "1048576".into())
        );
        assert!(!directory.path().join(&path).join("pids.max").exists());
    }
}

#[test]
fn a_class_has_as_much_of_the_cpu_as_its_pods_request() {
    let directory = tempfile::tempdir().expect("a directory");
    let cgroups = on_files(directory.path());
    let none = Resources::default();
    let weight = |class: &str| {
        let file = directory.path().join("node").join(class).join("cpu.weight");
        fs::read_to_string(file).expect("written")
    };
    cgroups
        .make("a", claim(QosClass::Burstable, 1000), &none)
        .expect("is made");
    // 1024 shares.
    assert_eq!(weight(BURSTABLE), "39");
    cgroups
        .make("b", claim(QosClass::Burstable, 3000), &none)
        .expect("is made");
    assert_eq!(weight(BURSTABLE), "157");
    cgroups
        .make("c", claim(QosClass::BestEffort, 0), &none)
        .expect("is made");
    assert_eq!(
        (weight(BURSTABLE), weight(BEST_EFFORT)),
        ("157".into(), "1".into())
    );
    assert!(
        cgroups
            .change("b", claim(QosClass::Burstable, 1000), &none)
            .expect("is changed")
    );
    assert_eq!(weight(BURSTABLE), "79");
    cgroups.remove("a").expect("is removed");
    assert_eq!(weight(BURSTABLE), "39");
    // One that an earlier agent has made counts as soon as the next one comes.
    cgroups.adopt("d", claim(QosClass::Burstable, 3000));
    cgroups.sweep(|_| true).expect("is swept");
    assert_eq!(weight(BURSTABLE), "157");
    assert!(
        !cgroups
            .change("d", claim(QosClass::Burstable, 1), &none)
            .expect("has none")
    );
}

#[test]
fn shares_are_those_of_a_kubelet() {
    for (cpu_millis, expected) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (100, 102),
        (1000, 1024),
        (1_000_000, 262_144),
    ] {
        assert_eq!(cpu_shares(cpu_millis), expected, "{cpu_millis}");
    }
}

#[test]
fn a_uid_that_is_a_path_makes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let cgroups = on_files(directory.path());
    for uid in ["", "../x", "a/b", "a\nb", &"x".repeat(300)] {
        let refused = cgroups.make(uid, claim(QosClass::Burstable, 0), &Resources::default());
        assert!(matches!(refused, Err(CgroupError::Name { .. })), "{uid:?}");
        assert!(cgroups.remove(uid).is_err());
    }
    assert_eq!(fs::read_dir(directory.path()).expect("lists").count(), 0);
}

#[test]
fn every_hierarchy_is_looked_into() {
    let mounts = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        32 30 0:28 / /sys/fs/cgroup/systemd rw shared:1 - cgroup cgroup rw,name=systemd\n\
        33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        34 30 0:30 / /proc rw - proc proc rw\n";
    let expected = ["cpu", "systemd", "unified"].map(|name| Path::new("/sys/fs/cgroup").join(name));
    assert_eq!(all_mounts(mounts), expected);
}

#[test]
fn nothing_is_left_of_real_cgroups_once_their_pods_are_gone() {
    if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
        return;
    }
    let root = PathBuf::from(format!("pulselet-test-pods-{}", std::process::id()));
    let cgroups = PodCgroups::open(root.clone()).expect("there are cgroups");
    let is_there = |path: &Path| cgroups.mounts.iter().any(|mount| mount.join(path).exists());
    assert!(!is_there(&root), "nothing is made before the first pod");
    let none = Resources::default();
    let make = |uid: &str, class| cgroups.make(uid, claim(class, 100), &none).expect("is made");
    let one = make("one", QosClass::Guaranteed);
    let other = make("other", QosClass::Burstable);
    // Another runtime uses hierarchies that are not limited here, and an agent that was killed has left something.
    for mount in &cgroups.mounts {
        let _ = fs::create_dir_all(mount.join(&other).join("container"));
        let _ = fs::create_dir_all(mount.join(&root).join("besteffort/podlost"));
    }
    assert!(is_there(&root.join("besteffort/podlost")));
    cgroups.sweep(|uid| uid == "one").expect("is swept");
    assert!(!is_there(&root.join(BEST_EFFORT)) && is_there(&one) && is_there(&other));
    cgroups.remove("other").expect("is removed");
    assert!(!is_there(&root.join(BURSTABLE)) && is_there(&one));
    cgroups.remove("one").expect("is removed");
    assert!(!is_there(&root));
}
