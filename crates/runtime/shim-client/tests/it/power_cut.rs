//! Power cuts: the records, opened from what every one of them would leave.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use pulselet_runtime::{
    ContainerConfig, ContainerFilter, ContainerState, Operation, PodIdentity, SandboxConfig, SandboxState,
    Signal,
};
use pulselet_shim_client::{
    Assignment, ContainerKind, ContainerRecord, SandboxRecord, ShimCommand, Shims, sync_sandbox,
};
use pulselet_testing::file_trace::{self, Loss};
use rustix::process::Pid;

/// Set for the process that is recorded: the directory it works in.
const HOME_VARIABLE: &str = "PULSELET_TEST_HOME";
/// What the recorded process says it has done, a line each.
const SAID: &str = "said";
/// A root whose sandboxes end with the machine, and one whose sandboxes do not.
const PASSING: &str = "passing";
const LASTING: &str = "lasting";
const RECORDED: &str = "the lasting sandbox is recorded";
const FORGOTTEN: &str = "the lasting sandbox is about to be forgotten";

/// Containers without processes.
#[derive(Debug)]
struct Files {
    outlive_machine: bool,
}

impl ContainerKind for Files {
    fn kill_leftovers(&self, _record: &ContainerRecord, _dir: &Path) -> bool {
        true
    }

    fn kill_unrecorded(&self, _id: &str, _dir: &Path) -> bool {
        true
    }

    fn processes(&self, _record: &ContainerRecord, _dir: &Path) -> Vec<Pid> {
        Vec::new()
    }

    fn clean_up(&self, _record: &ContainerRecord, _dir: &Path) {}

    fn outlives_machine(&self, _dir: &Path) -> bool {
        self.outlive_machine
    }
}

async fn open(home: &Path, root: &str) -> Shims {
    let kind = Arc::new(Files {
        outlive_machine: root == LASTING,
    });
    let shim = ShimCommand::this_program(["no-shim-is-started"]);
    let opened = Shims::open(&home.join(root), shim, kind).await;
    opened.unwrap_or_else(|error| panic!("{root} opens: {error}"))
}

fn pod(name: &str) -> SandboxConfig {
    SandboxConfig {
        pod: PodIdentity {
            uid: name.into(),
            namespace: "default".into(),
            name: name.into(),
        },
        ..SandboxConfig::default()
    }
}

fn say(home: &Path, text: &str) {
    use std::io::Write as _;
    let file = fs::File::options()
        .create(true)
        .append(true)
        .open(home.join(SAID));
    writeln!(file.expect("opens"), "{text}").expect("writes");
}

async fn passing_work(home: &Path) {
    let shims = open(home, PASSING).await;
    let none = |_: &SandboxConfig, _: &[&SandboxRecord]| Ok(Assignment::default());
    let sandbox = shims.add_sandbox(pod("a"), SandboxState::NotReady, none).await;
    let sandbox = sandbox.expect("it is recorded");
    let ready = |record: &mut SandboxRecord| record.state = SandboxState::Ready;
    let updated = shims.update_sandbox(Operation::RunSandbox, &sandbox, ready).await;
    assert!(updated.expect("it is recorded"));
    let mut containers = Vec::new();
    for name in ["kept", "removed"] {
        let config = ContainerConfig {
            name: name.into(),
            command: vec!["true".into()],
            log_path: home.join("logs").join(name),
            ..ContainerConfig::default()
        };
        let prepare = |dir: &Path| Ok(fs::write(dir.join("spec.json"), b"{}")?);
        let made = shims
            .create_container(&sandbox, &config, Signal::TERM, prepare)
            .await;
        containers.push(made.expect("it is made"));
    }
    shims
        .remove_container(&containers[1])
        .await
        .expect("it is removed");
}

async fn lasting_work(home: &Path) {
    let shims = open(home, LASTING).await;
    let none = |_: &SandboxConfig, _: &[&SandboxRecord]| Ok(Assignment::default());
    let sandbox = shims.add_sandbox(pod("b"), SandboxState::NotReady, none).await;
    let sandbox = sandbox.expect("it is recorded");
    sync_sandbox(&shims.sandbox_dir(&sandbox)).expect("it is brought to the disk");
    say(home, RECORDED);
    let ready = |record: &mut SandboxRecord| record.state = SandboxState::Ready;
    let updated = shims.update_sandbox(Operation::RunSandbox, &sandbox, ready).await;
    assert!(updated.expect("it is recorded"));
    shims.stop_sandbox(&sandbox).await.expect("it is stopped");
    say(home, FORGOTTEN);
    shims.forget_sandbox(&sandbox).await.expect("it is forgotten");
}

/// Not a test of its own: what an agent does until the power is cut.
#[tokio::test]
async fn recorded_work() {
    if let Some(home) = std::env::var_os(HOME_VARIABLE).map(PathBuf::from) {
        passing_work(&home).await;
        lasting_work(&home).await;
    }
}

/// Makes all records that can be read those of another boot: after a power cut they are.
fn change_boot(directory: &Path) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("reads");
    for entry in fs::read_dir(directory).expect("lists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            change_boot(&path);
        } else if let Ok(text) = fs::read_to_string(&path) {
            fs::write(&path, text.replace(boot.trim(), "an-earlier-boot")).expect("writes");
        }
    }
}

/// Opens what a cut left, and removes all of it.
async fn judge(directory: &Path, root: &str, cut: &str) -> usize {
    let shims = open(directory, root).await;
    let sandboxes = shims.sandboxes();
    for sandbox in &sandboxes {
        assert_eq!(sandbox.state, SandboxState::NotReady, "{cut}");
    }
    for container in shims.list_containers(&ContainerFilter::default()) {
        assert!(
            matches!(container.state, ContainerState::Exited(_)),
            "{cut}: {container:?}"
        );
        shims
            .remove_container(&container.id)
            .await
            .expect("it can be removed");
    }
    for sandbox in &sandboxes {
        shims
            .forget_sandbox(&sandbox.id)
            .await
            .expect("it can be removed");
    }
    for kind in ["containers", "sandboxes"] {
        let left = fs::read_dir(directory.join(root).join(kind))
            .expect("lists")
            .count();
        assert_eq!(left, 0, "{cut}: of {kind} something is left");
    }
    sandboxes.len()
}

#[test]
fn no_power_cut_leaves_records_that_trouble_the_next_agent() {
    let home = tempfile::tempdir().expect("a directory");
    let mut work = Command::new(std::env::current_exe().expect("is known"));
    work.args(["--exact", "power_cut::recorded_work"])
        .env(HOME_VARIABLE, home.path());
    let Some(trace) = file_trace::record(&mut work, home.path()) else {
        return;
    };
    let said = |text: &str| trace.first_with(&home.path().join(SAID), text);
    let recorded = said(RECORDED).expect("it was said");
    let forgotten = said(FORGOTTEN).expect("it was said");
    let executor = tokio::runtime::Runtime::new().expect("a runtime");
    let mut unsynced = 0;
    trace.images(|directory, changes, loss| {
        let cut = format!("after {changes} changes ({loss:?})");
        unsynced += usize::from(loss == Loss::Unsynced);
        change_boot(directory);
        executor.block_on(async {
            judge(directory, PASSING, &cut).await;
            let lasting = judge(directory, LASTING, &cut).await;
            if (recorded..=forgotten).contains(&changes) {
                assert_eq!(lasting, 1, "{cut}: what outlives the machine is known");
            }
        });
    });
    assert!(unsynced > 30, "{unsynced} cuts that lose something");
}
