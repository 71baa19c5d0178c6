//! The class of CVE-2022-0492: hierarchies of cgroups that a container mounts in a user namespace of its own. There it may change all
//! from its own cgroup on, which must not be the machine's root.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pulselet_runtime::{AppArmor, Runtime};

use super::run_both_ways;
use crate::world::{World, can_run, eventually};

/// Lines of the table of mounts that are hierarchies: where each is, of which kind, and what it has.
fn hierarchies() -> Vec<(PathBuf, String, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("reads");
    let parse = |line: &str| {
        let (front, back) = line.split_once(" - ").expect("a line of mounts");
        let mut back = back.split(' ');
        let kind = back.next().filter(|kind| kind.starts_with("cgroup"))?;
        let controller = back.next_back().and_then(|options| options.rsplit(',').next())?;
        let place = front.split(' ').nth(4).expect("a place");
        Some((place.into(), kind.to_owned(), controller.to_owned()))
    };
    table.lines().filter_map(parse).collect()
}

/// Commands that mount every hierarchy of the machine below /mnt, in a user namespace.
fn in_namespaces(then: &str) -> String {
    let mut script = String::from("mount -t tmpfs none /mnt");
    for (number, (_, kind, controller)) in hierarchies().into_iter().enumerate() {
        let name = format!("/mnt/{number}-{controller}");
        let options = match (kind.as_str(), controller.strip_prefix("name=")) {
            ("cgroup", Some(_)) => format!("-o none,{controller}"),
            ("cgroup", None) => format!("-o {controller}"),
            _ => String::new(),
        };
        let commands = [
            "; mkdir ",
            &name,
            " && mount -t ",
            &kind,
            " ",
            &options,
            " none ",
            &name,
            " && echo mounted",
        ];
        script.extend(commands);
    }
    format!("unshare --user --map-root-user --mount --cgroup sh -c '{script}; {then}' 2>&1")
}

/// Directories of the machine's roots that a test has made, until it is dropped.
struct Marks(Vec<PathBuf>);

impl Marks {
    fn make(world: &World) -> Self {
        let name = world
            .home
            .path()
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let marks = hierarchies()
            .into_iter()
            .map(|(place, ..)| place.join(format!("mark{name}")));
        let marks = marks.filter(|mark| fs::create_dir(mark).is_ok()).collect();
        Self(marks)
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        for mark in &self.0 {
            let _ = fs::remove_dir(mark);
        }
    }
}

#[tokio::test]
async fn no_hierarchy_shows_the_cgroups_of_the_machine() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let marks = Marks::make(&world);
    assert!(!marks.0.is_empty());
    let script = in_namespaces("ls -d /mnt/*/mark* 2>/dev/null; echo looked");
    let mut config = world.config("main", "");
    config.security.app_armor = Some(AppArmor::Unconfined);
    for output in run_both_ways(&world, &script, &config).await {
        assert!(
            output.contains("mounted") && output.contains("looked"),
            "{output}"
        );
        assert!(!output.contains("mark"), "{output}");
    }
    drop(marks);
    world.finish().await;
}

/// Whether a cgroup of that name, somewhere below, is frozen.
fn is_frozen(directory: &Path, name: &str, depth: usize) -> bool {
    let state = fs::read_to_string(directory.join(name).join("freezer.state"));
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    state.is_ok_and(|state| state.trim() == "FROZEN")
        || depth > 0
            && below
                .filter(is_directory)
                .any(|entry| is_frozen(&entry.path(), name, depth - 1))
}

/// Frozen processes of version 1 take no signal, SIGKILL neither.
#[tokio::test]
async fn a_container_that_has_frozen_itself_ends_all_the_same() {
    if !can_run() {
        return;
    }
    let freezer = hierarchies()
        .into_iter()
        .find(|(.., controller)| controller == "freezer");
    // Those of version 2 die.
    let Some((freezer, ..)) = freezer else {
        return;
    };
    let world = World::new().await;
    let name = format!("x{}", std::process::id());
    let freeze = format!(
        "cd /mnt/*-freezer && mkdir {name} && echo $$ > {name}/tasks && echo FROZEN > {name}/freezer.state"
    );
    let mut config = world.config("main", &in_namespaces(&freeze));
    config.security.app_armor = Some(AppArmor::Unconfined);
    let id = world.run_config(&config).await;
    eventually("it is frozen", async || {
        is_frozen(&freezer, &name, 3).then_some(())
    })
    .await;
    world.runtime.remove_container(&id).await.expect("is removed");
    world.finish().await;
}
