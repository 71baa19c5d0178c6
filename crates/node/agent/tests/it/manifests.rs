//! Static pods from a directory.

use std::fs;
use std::path::Path;

use pulselet_agent::Origin;
use pulselet_vocabulary::PodName;

use crate::harness::{Bench, eventually, runtime};

fn write(directory: &Path, file: &str, name: &str, value: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - {{name: app, image: app:1, env: [{{name: V, value: '{value}'}}]}}\n"
    );
    // Written aside and moved, as an editor does.
    let temporary = directory.join(".new");
    fs::write(&temporary, text).expect("a file");
    fs::rename(&temporary, directory.join(file)).expect("a new name");
}

async fn bench() -> (Bench, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = directory.path().join("manifests");
    fs::create_dir(&manifests).expect("a directory");
    write(&manifests, "one.yaml", "one", "a");
    let path = manifests.clone();
    let bench = Bench::on(directory, runtime(), |options| options.manifests = Some(path)).await;
    (bench, manifests)
}

#[tokio::test]
async fn files_come_change_and_go_and_so_do_their_pods() {
    let (mut bench, manifests) = bench().await;
    bench.until_ready().await;
    write(&manifests, "two.yaml", "two", "a");
    bench.until_ready().await;
    write(&manifests, "one.yaml", "one", "b");
    let deleted = bench.until_type("deleted").await;
    assert_eq!(deleted.pod, PodName::new("default", "one"));
    bench.until_ready().await;
    fs::remove_file(manifests.join("two.yaml")).unwrap();
    let deleted = bench.until_type("deleted").await;
    assert_eq!(deleted.pod, PodName::new("default", "two"));
}

#[tokio::test]
async fn a_broken_file_leaves_the_running_pod_alone() {
    let (mut bench, manifests) = bench().await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let broken = [
        "apiVersion: v1\nkind: Pod\nspec: [",
        "",
        "# nothing but a remark\n",
    ];
    for (round, text) in broken.into_iter().enumerate() {
        fs::write(manifests.join("one.yaml"), text).unwrap();
        // A file that comes after the broken one was looked at shows that it was.
        write(&manifests, "zero.yaml", "zero", &round.to_string());
        bench.until_ready().await;
        let pods = bench.node.pods().await.unwrap();
        assert!(pods.iter().any(|pod| pod.uid == uid && !pod.deleting), "{text:?}");
    }
    // A second file with the same pod is not used either.
    write(&manifests, "again.yaml", "zero", "b");
    write(&manifests, "zzz.yaml", "last", "a");
    bench
        .until("last pod", |line| line.pod == PodName::new("default", "last"))
        .await;
    let node = bench.node.clone();
    eventually("three pods, none leaving", || async {
        let pods = node.pods().await.unwrap();
        pods.len() == 3 && pods.iter().all(|pod| !pod.deleting)
    })
    .await;
}

#[tokio::test]
async fn a_file_that_went_while_no_agent_ran_takes_its_pod_with_it() {
    let (mut bench, manifests) = bench().await;
    bench.until_ready().await;
    let view = bench.node.pods().await.unwrap().remove(0);
    assert!(matches!(view.origin, Origin::Manifest { path } if path.ends_with("one.yaml")));
    let (directory, runtime) = bench.leave().await;
    fs::remove_file(manifests.join("one.yaml")).unwrap();
    let mut bench = Bench::on(directory, runtime, |options| options.manifests = Some(manifests)).await;
    bench.until_type("deleted").await;
}
