//! Images that are volumes: their files are shown as they are, to be read only.

use pulselet_runtime::{
    ContainerConfig, Error, ImageErrorKind, Mount, MountedImage, Namespaces, Propagation, Runtime,
    SandboxConfig,
};
use serde_json::json;

use crate::{
    images::{file_layer, load},
    world::{World, can_run, on_host_network},
};

const SITE: &str = "test/site:1";

/// An image with a file that the second layer replaces, and one in a directory.
fn load_site(world: &World) {
    let layers = [
        file_layer("page", "old\n"),
        file_layer("page", "new\n"),
        file_layer("parts/seven/text", "7\n"),
    ];
    load(world.home.path(), SITE, &layers, &json!({}));
}

async fn mounted(world: &World, image: &str, at: &str) -> Mount {
    let found = world.runtime.image_status(image).await.expect("answers");
    Mount {
        volume: "site".into(),
        container_path: at.into(),
        host_path: "".into(),
        image: Some(MountedImage {
            reference: image.into(),
            id: found.map(|image| image.id).unwrap_or_default(),
        }),
        sub_path: None,
        read_only: true,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }
}

fn with(world: &World, name: &str, script: &str, mount: Mount) -> ContainerConfig {
    let mut config = world.config(name, script);
    config.mounts.push(mount);
    config
}

#[tokio::test]
async fn the_files_of_an_image_can_be_read_and_not_changed() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    load_site(&world);
    let script = "cat /site/page /site/parts/seven/text; echo x > /site/page; rm /site/page; ls /site; \
                  stat -c %u:%g /site/page";
    let whole = mounted(&world, SITE, "/site").await;
    let output = world
        .output_of(&with(&world, "whole", script, whole.clone()))
        .await;
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| !line.contains("Read-only"))
        .collect();
    assert_eq!(lines, ["new", "7", "page", "parts", "0:0"], "{output}");
    assert_eq!(output.matches("Read-only").count(), 2, "{output}");
    let part = Mount {
        sub_path: Some("parts/seven".into()),
        ..whole
    };
    let output = world.output_of(&with(&world, "part", "ls /site", part)).await;
    assert_eq!(output, "text");
    world.finish().await;
}

#[tokio::test]
async fn an_image_of_one_layer_and_one_of_none_are_volumes_too() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    load(
        world.home.path(),
        "test/one:1",
        &[file_layer("a", "1\n")],
        &json!({}),
    );
    load(world.home.path(), "test/none:1", &[], &json!({}));
    let mut config = with(
        &world,
        "both",
        "cat /one/a; ls -A /none | wc -l",
        mounted(&world, "test/one:1", "/one").await,
    );
    config.mounts.push(mounted(&world, "test/none:1", "/none").await);
    assert_eq!(world.output_of(&config).await, "1\n0");
    world.finish().await;
}

#[tokio::test]
async fn the_pods_own_users_see_the_files_as_theirs() {
    if !can_run() {
        return;
    }
    let world = World::with(SandboxConfig {
        namespaces: Namespaces {
            own_users: true,
            ..on_host_network().namespaces
        },
        ..SandboxConfig::default()
    })
    .await;
    load_site(&world);
    let mount = mounted(&world, SITE, "/site").await;
    let script = "stat -c %u:%g /site /site/page; cat /site/page";
    let output = world.output_of(&with(&world, "own", script, mount)).await;
    assert_eq!(output, "0:0\n0:0\nnew");
    world.finish().await;
}

#[tokio::test]
async fn what_cannot_be_mounted_of_an_image_is_refused_by_name() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    load_site(&world);
    let missing = mounted(&world, "test/missing:1", "/site").await;
    let missing = with(&world, "missing", "true", missing);
    let refused = world.runtime.create_container(&world.sandbox, &missing).await;
    match refused.expect_err("is not there") {
        Error::Image(error) => {
            assert_eq!(error.kind, ImageErrorKind::NotFound);
            assert!(error.message.contains("test/missing:1"), "{error}");
        }
        other => panic!("{other}"),
    }
    for (name, path) in [("none", "no/such"), ("file", "page")] {
        let part = Mount {
            sub_path: Some(path.into()),
            ..mounted(&world, SITE, "/site").await
        };
        let config = with(&world, name, "true", part);
        let created = world.runtime.create_container(&world.sandbox, &config).await;
        let id = created.expect("is made when it starts");
        let refused = world.runtime.start_container(&id).await;
        let text = refused.expect_err("there is no such directory").to_string();
        assert!(text.contains(SITE) && text.contains(path), "{text}");
    }
    world.finish().await;
}

#[tokio::test]
async fn an_image_that_is_mounted_is_in_use() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    load_site(&world);
    let mount = mounted(&world, SITE, "/site").await;
    let id = world
        .run_config(&with(&world, "reads", "sleep 1000", mount))
        .await;
    let refused = world.runtime.remove_image(SITE).await;
    match refused.expect_err("is mounted") {
        Error::Image(error) => assert_eq!(error.kind, ImageErrorKind::InUse),
        other => panic!("{other}"),
    }
    world.runtime.remove_container(&id).await.expect("removes");
    world.runtime.remove_image(SITE).await.expect("nobody needs it");
    assert_eq!(world.runtime.image_status(SITE).await.expect("answers"), None);
    world.finish().await;
}
