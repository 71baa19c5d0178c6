//! `pulselet image`, as users and scripts see it. Loading needs root.

use std::path::Path;

use pulselet_image::{Digest, Platform};
use pulselet_runtime::{ContainerConfig, ContainerId, SandboxId, Signal};
use pulselet_shim_client::{CONTAINER_FILE, ContainerRecord};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Run, pulselet, pulselet_with_stdin};

fn root() -> bool {
    pulselet_testing::requires("root", pulselet_testing::is_root())
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *content).expect("it fits");
    }
    archive.into_inner().expect("it is in memory")
}

/// What `docker save app:1` would write.
fn archive(architecture: &str) -> Vec<u8> {
    let layer = tar(&[("hello", b"hello")]);
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer)]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": ["app:1"], "Layers": ["layer.tar"]}]);
    tar(&[
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", &layer),
        ("manifest.json", manifest.to_string().as_bytes()),
    ])
}

struct Store(TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let directory = self.0.path().to_str().expect("a plain path");
        [&["image"], args, &["--data-dir", directory]].concat()
    }

    fn run(&self, args: &[&str]) -> Run {
        pulselet(&self.args(args))
    }

    fn load(&self, archive: &[u8]) -> Run {
        pulselet_with_stdin(&self.args(&["load", "-"]), archive)
    }

    /// The only image.
    fn listed(&self) -> Value {
        let run = self.run(&["ls", "-o", "json"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        serde_json::from_str(&run.stdout).expect("one line of JSON")
    }

    /// As if a container had been made from the image.
    fn use_image(&self, id: &str) {
        let directory = self.0.path().join("oci/containers/one");
        let record = ContainerRecord {
            id: ContainerId::new("one"),
            sandbox: SandboxId::new("pod"),
            boot_id: String::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            stop_signal: Signal::TERM,
            config: ContainerConfig {
                image_id: id.to_owned(),
                ..ContainerConfig::default()
            },
            log_limits: None,
        };
        std::fs::create_dir_all(&directory).expect("makes");
        let json = serde_json::to_vec(&record).expect("a record is JSON");
        std::fs::write(directory.join(CONTAINER_FILE), json).expect("writes");
    }
}

fn host() -> String {
    Platform::host().architecture
}

#[test]
fn an_image_from_load_to_rm() {
    if !root() {
        return;
    }
    let store = Store::new();
    let run = store.run(&["ls"]);
    assert_eq!(
        (run.code, run.stdout.lines().count()),
        (Some(0), 1),
        "only headings"
    );
    let run = store.load(&archive(&host()));
    assert_eq!(
        (run.code, run.stdout.as_str(), run.stderr.as_str()),
        (Some(0), "Loaded app:1\n", "")
    );

    let image = store.listed();
    assert_eq!(image["references"], json!(["docker.io/library/app:1"]));
    assert_eq!((&image["size"], &image["layers"]), (&json!(5), &json!(1)));
    let id = image["id"].as_str().expect("an id");
    let table = store.run(&["ls"]).stdout;
    let row: Vec<_> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[..2], ["app:1", &id["sha256:".len()..][..12]]);

    let run = store.run(&["rm", "app:1"]);
    assert_eq!(
        (run.code, run.stdout),
        (Some(0), format!("Untagged app:1\nDeleted {id}\n"))
    );
    let run = store.run(&["rm", "app:1"]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.stderr.contains("no such image") && run.stderr.contains("hint"),
        "{}",
        run.stderr
    );
}

#[test]
fn what_a_container_uses_is_not_removed() {
    if !root() {
        return;
    }
    let store = Store::new();
    store.load(&archive(&host()));
    store.use_image(store.listed()["id"].as_str().expect("an id"));
    let run = store.run(&["rm", "app:1"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.contains("used by a container"), "{}", run.stderr);
    let run = store.run(&["prune", "--all"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""));
    std::fs::remove_dir_all(store.0.path().join("oci")).expect("removes");
    let run = store.run(&["prune", "--all", "-o", "json"]);
    let removed: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(
        (removed["deleted"].as_array().map(Vec::len), &removed["freed"]),
        (Some(1), &json!(5))
    );
}

#[test]
fn bad_input_has_its_own_message() {
    if !root() {
        return;
    }
    let store = Store::new();
    let other = if host() == "s390x" { "amd64" } else { "s390x" };
    for (run, code, said) in [
        (store.load(b"not an archive"), 2, "archive"),
        (store.load(&tar(&[("file", b"")])), 2, "docker save"),
        (store.load(&archive(other)), 1, "this machine is"),
        (store.run(&["load", "/nonexistent.tar"]), 2, "/nonexistent.tar"),
        (store.run(&["pull", "Not A Name"]), 2, "invalid image reference"),
        (store.run(&["rm", "Not A Name"]), 2, "invalid image reference"),
        (
            store.run(&["pull", "127.0.0.1:1/app"]),
            3,
            "cannot reach 127.0.0.1:1",
        ),
    ] {
        assert_eq!((run.code, run.stdout.as_str()), (Some(code), ""), "{run:?}");
        assert!(run.stderr.contains(said), "{run:?}");
    }
    assert_eq!(store.run(&["ls", "-o", "json"]).stdout, "");
    assert!(!Path::new("/nonexistent.tar").exists());
}
