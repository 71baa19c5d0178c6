//! Every field of a manifest that has to do with security is honoured or refused, on every runtime.
//!
//! The table in [`rows`] says which. A node with the runtime's abilities is given a pod for each cell: what is refused fails
//! at once with the path of its field and with what to do, and what is honoured names the test that proves it. The lists
//! of fields come from the types of the API, so that a new field fails until it has a row. The same table is
//! `docs/security-fields.md`.

mod rows;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_runtime::{Features, Runtime, SecurityFeatures};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_runtime_oci::OciRuntime;
use pulselet_runtime_process::ProcessRuntime;
use pulselet_vocabulary::PodName;
use serde::Serialize;
use serde_json::json;

use crate::harness::{Bench, runtime};
use rows::{Row, Verdict, rows};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/security-fields.md");

/// What a message may tell its reader to do.
const ADVICE: [&str; 4] = ["leave", "use ", "set ", "run "];

/// A node whose runtime enforces this much.
async fn node_with(security: SecurityFeatures) -> Bench {
    let features = Features {
        security,
        ..runtime().version().await.expect("known").features
    };
    let runtime = FakeRuntime::with_features(RuntimeFaults::default(), features);
    Bench::on(tempfile::tempdir().expect("a directory"), runtime, |_| {}).await
}

/// Reason and message with which the node refuses the row's pod; `None` if it takes it.
async fn refused(bench: &Bench, index: usize, row: &Row) -> Option<(String, String)> {
    let mut pod = row.pod.clone();
    pod["metadata"]["name"] = json!(format!("p{index}"));
    // Not admitted: another API server may let through what ours does not.
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let name = PodName::new("default", pod.name());
    bench.add(pod).await;
    let view = bench.node.pod(&name).await.expect("the node is there");
    let status = view.expect("the pod is there").status;
    (status.phase == "Failed").then_some((status.reason, status.message))
}

/// Checks a column of the table. `least` is what the runtime enforces everywhere, `most` what it can where it finds all
/// that it needs.
async fn check(column: fn(&Row) -> Verdict, least: SecurityFeatures, most: SecurityFeatures) {
    let (least, most) = (node_with(least).await, node_with(most).await);
    for (index, row) in rows().iter().enumerate() {
        let (without, with) = (
            refused(&least, index, row).await,
            refused(&most, index, row).await,
        );
        let (taken, turned_away): (&[_], &[_]) = match column(row) {
            Verdict::Honoured(_) | Verdict::Unconfined => (&[without, with], &[]),
            Verdict::IfAble(_) => (&[with], &[without]),
            Verdict::Refused => (&[], &[without, with]),
        };
        for refusal in taken {
            assert_eq!(*refusal, None, "{}", row.field);
        }
        for refusal in turned_away {
            let (reason, message) = refusal
                .as_ref()
                .unwrap_or_else(|| panic!("{} is ignored", row.field));
            assert_eq!(reason, row.reason, "{}", row.field);
            let rest = message.strip_prefix(&format!("Pod was rejected: {}: ", row.path));
            let rest = rest.unwrap_or_else(|| panic!("{message:?} does not name {}", row.path));
            assert!(ADVICE.iter().any(|word| rest.contains(word)), "{rest:?}");
        }
    }
    least.leave().await;
    most.leave().await;
}

#[tokio::test]
async fn containers_honour_or_refuse_every_field() {
    // What is left depends on the machine.
    let least = SecurityFeatures {
        app_armor: false,
        user_namespaces: false,
        ..OciRuntime::SECURITY
    };
    check(|row| row.oci, least, OciRuntime::SECURITY).await;
}

#[tokio::test]
async fn host_processes_honour_or_refuse_every_field() {
    check(
        |row| row.process,
        ProcessRuntime::SECURITY,
        ProcessRuntime::SECURITY,
    )
    .await;
}

#[tokio::test]
async fn cri_servers_honour_or_refuse_every_field() {
    check(
        |row| row.cri,
        pulselet_cri_client::SECURITY,
        SecurityFeatures::ALL,
    )
    .await;
}

fn keys(value: &impl Serialize) -> BTreeSet<String> {
    let value = serde_json::to_value(value).expect("plain data");
    value.as_object().expect("an object").keys().cloned().collect()
}

/// The last words of the fields below a prefix.
fn listed(prefix: &str) -> BTreeSet<String> {
    let rows = rows();
    let fields = rows.iter().filter_map(|row| row.field.strip_prefix(prefix));
    fields.map(str::to_owned).collect()
}

#[test]
fn every_field_of_a_security_context_has_a_row() {
    // Written out in full: a field that the API gains does not compile until it is here and in the table.
    let of_container = core::SecurityContext {
        allow_privilege_escalation: Some(true),
        app_armor_profile: Some(core::AppArmorProfile::default()),
        capabilities: Some(core::Capabilities::default()),
        privileged: Some(true),
        proc_mount: Some(String::new()),
        read_only_root_filesystem: Some(true),
        run_as_group: Some(1),
        run_as_non_root: Some(true),
        run_as_user: Some(1),
        se_linux_options: Some(core::SELinuxOptions::default()),
        seccomp_profile: Some(core::SeccompProfile::default()),
        windows_options: Some(core::WindowsSecurityContextOptions::default()),
    };
    assert_eq!(keys(&of_container), listed("containers[].securityContext."));
    let of_pod = core::PodSecurityContext {
        app_armor_profile: Some(core::AppArmorProfile::default()),
        fs_group: Some(1),
        fs_group_change_policy: Some(String::new()),
        run_as_group: Some(1),
        run_as_non_root: Some(true),
        run_as_user: Some(1),
        se_linux_change_policy: Some(String::new()),
        se_linux_options: Some(core::SELinuxOptions::default()),
        seccomp_profile: Some(core::SeccompProfile::default()),
        supplemental_groups: Some(Vec::new()),
        supplemental_groups_policy: Some(String::new()),
        sysctls: Some(Vec::new()),
        windows_options: Some(core::WindowsSecurityContextOptions::default()),
    };
    assert_eq!(keys(&of_pod), listed("spec.securityContext."));
}

/// Names of all functions below the crates.
fn functions() -> BTreeSet<String> {
    fn visit(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).expect("lists").flatten() {
            let path = entry.path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("reads");
                let names = text
                    .split("fn ")
                    .skip(1)
                    .filter_map(|rest| rest.split('(').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }
    let mut found = BTreeSet::new();
    visit(&Path::new(REPOSITORY).join("crates"), &mut found);
    found
}

#[test]
fn the_tests_that_prove_it_are_there() {
    let functions = functions();
    for row in rows() {
        for verdict in [row.oci, row.process, row.cri] {
            if let Verdict::Honoured(test) | Verdict::IfAble(test) = verdict {
                assert!(functions.contains(test), "{}: there is no test {test}", row.field);
            }
        }
    }
}

fn page() -> String {
    let mut text = "\
# Security fields

This page is generated from the table in the agent's tests, which check it; `UPDATE_REFERENCE=1 cargo test -p
pulselet-agent security_fields` writes it anew.

No setting of a manifest that has to do with security is ignored. It is honoured, or the pod fails before anything of it
starts, with a reason and a message that names the field. What a runtime honours is proven by the test that is named.

- *if able*: honoured if the CRI server says that it can, if the kernel has AppArmor, or, for a pod's own users, if the
  kernel and the file system of the data directory map the owners of files; otherwise refused.
- *not confined*: the setting asks for less isolation, or is about isolation that host processes never have. The command
  says so when it starts: nothing is isolated.

| field | for example | `--runtime oci` | `--runtime process` | CRI server | reason of the refusal |
|---|---|---|---|---|---|
"
    .to_owned();
    for row in rows() {
        let reason = if row.reason.is_empty() {
            ""
        } else {
            &format!("`{}`", row.reason)
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | {} | {} | {reason} |",
            row.field, row.example, row.oci, row.process, row.cri
        );
    }
    text
}

#[test]
fn the_page_is_current() {
    let current = page();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(PAGE, &current).expect("the page is written");
    }
    let written = fs::read_to_string(PAGE).expect("there is a page");
    assert!(
        written == current,
        "docs/security-fields.md is not what the table says; UPDATE_REFERENCE=1 cargo test -p pulselet-agent security_fields"
    );
}
