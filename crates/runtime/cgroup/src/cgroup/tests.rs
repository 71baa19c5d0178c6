use super::*;
use crate::settings::weight;

const HYBRID: &str = "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
    31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n\
    32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
    33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
    34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

#[test]
fn both_versions_are_recognised() {
    let found = Hierarchies::find_in(HYBRID, |_| String::new()).expect("has controllers");
    let cpu = PathBuf::from("/sys/fs/cgroup/cpu,cpuacct");
    assert_eq!(
        found,
        Hierarchies::V1(vec![
            ("cpu".into(), cpu.clone()),
            ("cpuacct".into(), cpu),
            ("memory".into(), "/sys/fs/cgroup/memory".into()),
        ])
    );
    assert_eq!(
        found.mounts().len(),
        2,
        "controllers that share a mount are one hierarchy"
    );
    let pure = "31 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let found =
        Hierarchies::find_in(pure, |_| "cpuset cpu io memory pids\n".into()).expect("has controllers");
    assert_eq!(found, Hierarchies::V2("/sys/fs/cgroup".into()));
    assert!(Hierarchies::find_in("", |_| String::new()).is_err());
}

#[test]
fn limits_of_version_2_are_written_to_its_files() {
    let root = tempfile::tempdir().expect("a directory");
    let cgroup = Hierarchies::V2(root.path().to_owned()).cgroup(Path::new("a/b"));
    cgroup.create().expect("makes directories");
    let resources = Resources {
        cpu_shares: Some(1024),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_limit: Some(1 << 20),
        ..Resources::default()
    };
    cgroup.limit(&resources).expect("writes");
    let read = |name: &str| fs::read_to_string(root.path().join("a/b").join(name)).expect("was written");
    assert_eq!(read("cpu.weight"), "39");
    assert_eq!(read("cpu.max"), "50000 100000");
    assert_eq!(read("memory.max"), "1048576");
    assert_eq!(read("memory.swap.max"), "0");
    assert_eq!(read("pids.max"), DEFAULT_PIDS_LIMIT.to_string());
    fs::write(root.path().join("a/b/memory.events"), "oom 1\noom_kill 1\n").expect("writes");
    assert!(cgroup.oom_killed());
    assert_eq!(
        root.path().join("a").read_dir().expect("lists").count(),
        2,
        "b and the controllers for it"
    );
}

/// Whatever controllers the kernel has there: those of version 1 may have all of them.
#[test]
fn all_processes_of_a_real_cgroup_of_version_2_are_killed() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("reads");
    let of_v2 = |line: &str| {
        line.contains(" - cgroup2 ")
            .then(|| line.split(' ').nth(4).map(PathBuf::from))
    };
    let root = mounts.lines().find_map(of_v2).flatten();
    let usable = root.filter(|_| rustix::process::geteuid().is_root());
    if !pulselet_testing::requires("root and cgroup2", usable.is_some()) {
        return;
    }
    let root = usable.expect("just looked");
    let base = Hierarchies::V2(root).cgroup(&PathBuf::from(format!("pulselet-test-{}", std::process::id())));
    let cgroup = base.hierarchies.cgroup(&base.path.join("sandbox/container"));
    cgroup.create().expect("makes directories");
    let procs = cgroup.directories()[0].join("cgroup.procs");
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("runs");
    fs::write(procs, child.id().to_string()).expect("joins");
    assert_eq!(base.children(), HashSet::from(["sandbox".to_owned()]));
    assert_eq!(cgroup.kill(), 1);
    let status = child.wait().expect("ends");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(Signal::KILL.number())
    );
    assert!(cgroup.kill_until_empty(REMOVE_PATIENCE));
    base.remove();
    assert!(!base.directories()[0].exists());
}

/// The filter needs no controller, so it can be tried wherever the hierarchy is mounted.
#[test]
fn a_real_cgroup_of_version_2_refuses_devices_that_no_rule_allows() {
    use std::{io::Write, process::Stdio};
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("reads");
    let of_v2 = |line: &str| {
        line.contains(" - cgroup2 ")
            .then(|| line.split(' ').nth(4).map(PathBuf::from))
    };
    let root = mounts.lines().find_map(of_v2).flatten();
    let usable = root.filter(|_| rustix::process::geteuid().is_root());
    if !pulselet_testing::requires("root and cgroup2", usable.is_some()) {
        return;
    }
    let path = PathBuf::from(format!("pulselet-devices-{}", std::process::id()));
    let cgroup = Hierarchies::V2(usable.expect("just looked")).cgroup(&path);
    cgroup.create().expect("makes directories");
    cgroup
        .limit_devices(&device_access::rules(&[]))
        .expect("attaches");
    let script = "read go; cd $1; (: > /dev/null) && echo null; (: > /dev/kmsg) || echo kmsg; \
        mknod made c 1 11 && echo made; (: > made) || echo refused; head -c 2 /dev/zero | wc -c";
    let directory = tempfile::tempdir().expect("a directory");
    let mut child = std::process::Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    let procs = cgroup.directories()[0].join("cgroup.procs");
    fs::write(procs, child.id().to_string()).expect("joins");
    child
        .stdin
        .take()
        .expect("has stdin")
        .write_all(b"go\n")
        .expect("writes");
    let output = child.wait_with_output().expect("ends");
    cgroup.remove();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "null\nkmsg\nmade\nrefused\n2\n"
    );
}

#[test]
fn shares_become_weights() {
    assert_eq!(
        [weight(0), weight(2), weight(1024), weight(262_144)],
        [1, 1, 39, 10_000]
    );
}
