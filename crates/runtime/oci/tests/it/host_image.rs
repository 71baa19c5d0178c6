//! What containers of the built-in image see of the machine.

use std::{fs, os::unix::fs::symlink};

use pulselet_runtime::Runtime;
use pulselet_runtime_oci::{HOST_IMAGE, OciRuntime};

use crate::world::{World, can_run, options};

/// What a container sees of files, each of which is a line of its output if it can be read.
async fn seen(world: &World, files: &[String]) -> String {
    let script = format!("cat {} 2>/dev/null; true", files.join(" "));
    world.output_of(&world.config("main", &script)).await
}

#[tokio::test]
async fn a_container_sees_no_agents_data() {
    if !can_run() {
        return;
    }
    let [one, other] = [World::new().await, World::without_sandbox().await];
    let mut files = Vec::new();
    for world in [&one, &other] {
        let file = world.home.path().join("secret");
        fs::write(&file, "secret\n").expect("writes");
        files.push(file.display().to_string());
    }
    assert_eq!(seen(&one, &files).await, "");
    one.finish().await;
    other.finish().await;
}

#[tokio::test]
async fn a_link_does_not_show_the_agents_data() {
    if !can_run() {
        return;
    }
    let mut world = World::without_sandbox().await;
    let hidden = tempfile::tempdir().expect("a directory");
    let link = world.home.path().with_extension("link");
    symlink(hidden.path(), &link).expect("links");
    fs::write(hidden.path().join("secret"), "secret\n").expect("writes");
    let mut options = options(world.home.path());
    options.data_dir.clone_from(&link);
    world.runtime = OciRuntime::open(options).await.expect("opens");
    world.sandbox = world.add_sandbox("pod", crate::world::on_host_network()).await;
    let files = [hidden.path(), &link].map(|path| path.join("secret").display().to_string());
    assert_eq!(seen(&world, &files).await, "");
    fs::remove_file(&link).expect("removes");
    world.finish().await;
}

#[tokio::test]
async fn a_container_sees_no_passwords_and_keys_of_the_machine() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let files = ["/etc/shadow", "/etc/gshadow", "/etc/ssh/*_key", "/root/.ssh/*"].map(str::to_owned);
    assert!(!fs::read("/etc/shadow").expect("reads").is_empty());
    assert_eq!(seen(&world, &files).await, "");
    world.finish().await;
}

#[tokio::test]
async fn it_has_to_be_allowed() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let mut options = options(world.home.path());
    options.host_image = false;
    world.runtime = OciRuntime::open(options).await.expect("opens");
    let missing = world.runtime.image_status(HOST_IMAGE).await.expect("answers");
    assert_eq!(missing, None);
    let error = world
        .runtime
        .pull_image(HOST_IMAGE, None)
        .await
        .expect_err("is refused");
    assert!(error.to_string().contains("hostImage: true"), "{error}");
    let config = world.config("main", "true");
    let refused = world.runtime.create_container(&world.sandbox, &config).await;
    assert!(refused.is_err(), "{refused:?}");
    world.finish().await;
}
