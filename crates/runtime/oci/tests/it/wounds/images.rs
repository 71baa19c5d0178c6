//! What a malicious image brings: volumes, users, links and files of kinds that nobody expects.

use pulselet_runtime::Runtime;
use serde_json::json;
use tar::EntryType;

use crate::{
    escapes::{SECRET, hide_secret, start},
    images::{base_layer, busybox, load, of_image},
    world::{World, can_run},
};

/// A layer of entries without content.
fn layer(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (kind, path, target) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o755);
        header.set_entry_type(*kind);
        if *kind == EntryType::Symlink {
            tar.append_link(&mut header, path, target).expect("fits");
        } else {
            tar.append_data(&mut header, path, &[][..]).expect("fits");
        }
    }
    tar.into_inner().expect("is complete")
}

/// CVE-2022-23648: a volume that an image declares is filled from a path of the host.
#[tokio::test]
async fn a_volume_of_an_image_shows_nothing_of_the_host() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let secret = hide_secret(&world);
    let home = world.home.path().display().to_string();
    let links = layer(&[
        (EntryType::Symlink, "link", "/"),
        (EntryType::Symlink, "up", "../../../../../.."),
        (EntryType::Symlink, "jump", "/proc/self/root"),
    ]);
    let volumes = [
        format!("/../../../..{home}"),
        format!("/link{home}"),
        format!("/up{home}"),
        format!("/jump{home}"),
        "/../../../../etc".to_owned(),
    ];
    for (number, path) in volumes.iter().enumerate() {
        let name = format!("test/volume{number}:1");
        let script = format!(
            "cat {secret} /link{secret} /up{secret} /jump{secret} {path}/secret 2>&1; \
             cat /etc/passwd /etc/shadow 2>&1; echo looked"
        );
        let config = json!({"Cmd": ["/bin/sh", "-c", script], "Volumes": {path: {}}});
        load(
            world.home.path(),
            &name,
            &[base_layer(&busybox), links.clone()],
            &config,
        );
        let config = of_image(&world, &format!("c{number}"), &name);
        if let Ok(id) = start(&world, &config).await {
            world.wait_for_exit(&id).await;
            let log = std::fs::read_to_string(&config.log_path).expect("has a log");
            assert!(log.contains("looked"), "{log}");
            assert!(!log.contains(SECRET) && !log.contains("daemon:"), "{path}: {log}");
        }
    }
    world.finish().await;
}

/// An image whose user files are pipes, directories or links to files of the kernel: nobody waits for them, and they make
/// nobody root.
#[tokio::test]
async fn users_come_from_plain_files_alone() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    for (number, (kind, target)) in [
        (EntryType::Fifo, ""),
        (EntryType::Directory, ""),
        (EntryType::Symlink, "/proc/self/mem"),
        (EntryType::Symlink, "/proc/1/root/etc/passwd"),
        (EntryType::Symlink, "passwd"),
        (EntryType::Symlink, "/dev/zero"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("test/users{number}:1");
        let users = layer(&[(kind, "etc/passwd", target), (kind, "etc/group", target)]);
        // No program that looks at the files itself.
        let config = json!({"Cmd": ["/bin/cat", "/proc/self/status"], "User": "1000:1000"});
        load(world.home.path(), &name, &[base_layer(&busybox), users], &config);
        let config = of_image(&world, &format!("c{number}"), &name);
        let id = start(&world, &config).await.expect("a number needs no file");
        world.wait_for_exit(&id).await;
        let log = std::fs::read_to_string(&config.log_path).expect("has a log");
        assert!(log.contains("Uid:\t1000\t1000\t1000"), "{target}: {log}");
        let mut named = of_image(&world, &format!("n{number}"), &name);
        named.security.run_as_username = Some("web".into());
        let refused = start(&world, &named).await;
        assert!(
            refused.is_err_and(|message| message.contains("unable to find user web")),
            "{target}"
        );
    }
    world.finish().await;
}

/// A group file with so many lines that comparing each with each takes a processor for minutes, and more groups than the
/// kernel gives a process.
#[tokio::test]
async fn an_image_with_very_many_groups_starts() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let mut tar = tar::Builder::new(Vec::new());
    let lines: Vec<String> = (0..100_000).map(|number| format!("g:x:{number}:web\n")).collect();
    let lines = lines.concat();
    let mut header = tar::Header::new_gnu();
    header.set_size(lines.len() as u64);
    header.set_mode(0o644);
    header.set_entry_type(EntryType::Regular);
    tar.append_data(&mut header, "etc/group", lines.as_bytes())
        .expect("fits");
    let layers = [base_layer(&busybox), tar.into_inner().expect("is complete")];
    let config = json!({"Cmd": ["/bin/pwd"], "User": "web"});
    load(world.home.path(), "test/groups:1", &layers, &config);
    let config = of_image(&world, "main", "test/groups:1");
    let id = start(&world, &config).await.expect("starts");
    world.wait_for_exit(&id).await;
    world.runtime.remove_container(&id).await.expect("removes");
    world.finish().await;
}
