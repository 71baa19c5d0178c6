//! Containers of images that were loaded, built here from a static busybox.

use std::{fs, path::Path, time::Duration};

use pulselet_image::Reference;
use pulselet_runtime::{ContainerConfig, ContainerUser, Error, ImageErrorKind, Runtime};
use serde_json::json;

use crate::world::{FOREVER, World, can_run, images};

/// Programs of busybox that the image has under their own names.
const PROGRAMS: [&str; 8] = ["sh", "cat", "echo", "sleep", "id", "pwd", "env", "ls"];

pub(crate) fn busybox() -> Option<Vec<u8>> {
    let program = fs::read("/bin/busybox").ok();
    assert!(
        program.is_some() || std::env::var_os("CI").is_none(),
        "these tests need Debian's busybox-static"
    );
    program
}

fn entry(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    header.set_entry_type(tar::EntryType::Regular);
    tar.append_data(&mut header, path, data).expect("fits");
}

/// A layer with busybox and a few users.
pub(crate) fn base_layer(busybox: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    entry(&mut tar, "bin/busybox", 0o755, busybox);
    for program in PROGRAMS {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_entry_type(tar::EntryType::Symlink);
        tar.append_link(&mut header, format!("bin/{program}"), "busybox")
            .expect("fits");
    }
    entry(
        &mut tar,
        "etc/passwd",
        0o644,
        b"root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n",
    );
    entry(
        &mut tar,
        "etc/group",
        0o644,
        b"root:x:0:\nweb:x:34:\nlogs:x:50:web\n",
    );
    tar.into_inner().expect("is complete")
}

/// A layer of one file.
pub(crate) fn file_layer(path: &str, text: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    entry(&mut tar, path, 0o644, text.as_bytes());
    tar.into_inner().expect("is complete")
}

/// Loads an image of the layers, lowest first, as `docker save` would have written it.
pub(crate) fn load(home: &Path, name: &str, layers: &[Vec<u8>], config: &serde_json::Value) {
    let digests: Vec<String> = layers
        .iter()
        .map(|layer| pulselet_image::Digest::of(layer).to_string())
        .collect();
    let document = json!({
        "architecture": pulselet_image::Platform::host().architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let names: Vec<String> = (0..layers.len()).map(|index| format!("{index}.tar")).collect();
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": names}]);
    let mut tar = tar::Builder::new(Vec::new());
    entry(&mut tar, "manifest.json", 0o644, manifest.to_string().as_bytes());
    entry(&mut tar, "config.json", 0o644, document.to_string().as_bytes());
    for (name, layer) in names.iter().zip(layers) {
        entry(&mut tar, name, 0o644, layer);
    }
    let archive = tar.into_inner().expect("is complete");
    images(home)
        .load(archive.as_slice(), None::<&Reference>)
        .expect("loads");
}

/// Without a command of its own.
pub(crate) fn of_image(world: &World, name: &str, image: &str) -> ContainerConfig {
    ContainerConfig {
        image: image.into(),
        command: Vec::new(),
        ..world.config(name, "")
    }
}

#[tokio::test]
async fn an_image_gives_files_command_variables_user_and_directory() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let config = json!({
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["id -un; id -G; pwd; echo $COLOUR $HOME; cat /note; ls /; echo x > /srv/x && cat /srv/x"],
        "Env": ["COLOUR=blue", "PATH=/bin"],
        "User": "web",
        "WorkingDir": "/tmp/work",
    });
    // The upper layer's file hides the lower one's.
    let layers = [
        base_layer(&busybox),
        file_layer("note", "lower\n"),
        file_layer("note", "upper\n"),
    ];
    load(world.home.path(), "test/full:1", &layers, &config);
    let output = world.output_of(&of_image(&world, "main", "test/full:1")).await;
    let expected = "web\n34 50\n/tmp/work\nblue /srv\nupper\nbin\ndev\netc\nnote\nproc\nshared\nsys\ntmp";
    assert!(output.starts_with(expected), "{output}");
    let mut changed = of_image(&world, "changed", "test/full:1");
    changed.args = vec!["echo $0 from the pod".into(), "args".into()];
    assert_eq!(world.output_of(&changed).await, "args from the pod");
    let listed = world
        .runtime
        .image_status("test/full:1")
        .await
        .expect("answers")
        .expect("is there");
    assert_eq!((listed.username.as_deref(), listed.uid), (Some("web"), None));
    world.finish().await;
}

#[tokio::test]
async fn an_image_with_very_many_layers_is_mounted() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let mut layers = vec![base_layer(&busybox)];
    layers.extend((1..120).map(|n| file_layer(&format!("files/{n}"), &format!("{n}\n"))));
    load(
        world.home.path(),
        "test/many:1",
        &layers,
        &json!({"Cmd": ["sh", "-c", "ls /files | busybox wc -l; cat /files/77"]}),
    );
    let output = world.output_of(&of_image(&world, "main", "test/many:1")).await;
    assert_eq!(output, "119\n77");
    world.finish().await;
}

#[tokio::test]
async fn the_status_tells_who_a_container_runs_as_also_to_a_later_agent() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let base = base_layer(&busybox);
    let config = json!({"Cmd": ["sh", "-c", "sleep 1000"], "User": "web"});
    load(world.home.path(), "test/user:1", &[base], &config);
    let user = |uid, gid, groups: &[u32]| ContainerUser {
        uid,
        gid,
        supplemental_groups: groups.to_vec(),
    };
    let mut expected = Vec::new();
    for (name, run_as_user, run_as_group, groups, wanted) in [
        ("image", None, None, vec![], user(33, 34, &[34, 50])),
        (
            "pod",
            Some(1000),
            Some(3000),
            vec![4000],
            user(1000, 3000, &[3000, 4000]),
        ),
        (
            "both",
            None,
            Some(3000),
            vec![4000],
            user(33, 3000, &[3000, 4000, 50]),
        ),
    ] {
        let mut container = of_image(&world, name, "test/user:1");
        container.security.run_as_user = run_as_user;
        container.security.run_as_group = run_as_group;
        container.security.supplemental_groups = groups;
        let sandbox = world.sandbox.clone();
        let id = (world.runtime.create_container(&sandbox, &container).await).expect("creates");
        assert_eq!(world.status(&id).await.user, None, "{name} has not begun");
        world.runtime.start_container(&id).await.expect("starts");
        assert_eq!(world.status(&id).await.user.as_ref(), Some(&wanted), "{name}");
        let (_, groups) = world.exec(&id, "id -u; id -g; id -G").await;
        // The kernel keeps a process's groups in their order.
        let mut ordered = wanted.supplemental_groups.clone();
        ordered[1..].sort_unstable();
        let listed: Vec<String> = ordered.iter().map(u32::to_string).collect();
        let seen = format!("{}\n{}\n{}", wanted.uid, wanted.gid, listed.join(" "));
        assert_eq!(groups.trim_end(), seen, "{name}");
        expected.push((id, wanted));
    }
    let world = world.reopen().await;
    for (id, wanted) in expected {
        assert_eq!(world.status(&id).await.user, Some(wanted));
        world
            .runtime
            .stop_container(&id, Duration::ZERO)
            .await
            .expect("stops");
    }
    world.finish().await;
}

#[tokio::test]
async fn the_images_stop_signal_counts_unless_the_pod_has_one() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let script = "trap 'exit 15' TERM; trap 'exit 10' USR1; trap 'exit 12' USR2; trap 'exit 37' 37; echo up > /shared/$NAME; while :; do sleep 0.05; done";
    let base = base_layer(&busybox);
    for (index, (of_image_signal, of_pod, effective, code)) in [
        (None, None, "SIGTERM", 15),
        (Some("SIGUSR1"), None, "SIGUSR1", 10),
        (Some("USR2"), None, "SIGUSR2", 12),
        (Some("10"), None, "SIGUSR1", 10),
        (Some("SIGRTMIN+3"), None, "SIGRTMIN+3", 37),
        (Some("SIGUSR1"), Some("SIGUSR2"), "SIGUSR2", 12),
        (Some("nonsense"), None, "SIGTERM", 15),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("c{index}");
        let image = format!("test/stop:{index}");
        let mut config = json!({"Cmd": ["sh", "-c", script], "Env": [format!("NAME={name}")]});
        if let Some(signal) = of_image_signal {
            config["StopSignal"] = signal.into();
        }
        load(world.home.path(), &image, std::slice::from_ref(&base), &config);
        let mut container = of_image(&world, &name, &image);
        container.stop_signal = of_pod.map(|text: &str| text.parse().expect("a signal"));
        let id = world.run_config(&container).await;
        world.file(&name).await;
        let status = world.status(&id).await;
        assert_eq!(
            status.stop_signal.map(|signal| signal.to_string()).as_deref(),
            Some(effective)
        );
        world.runtime.stop_container(&id, FOREVER).await.expect("stops");
        assert_eq!(
            world.wait_for_exit(&id).await.code,
            code,
            "{of_image_signal:?} {of_pod:?}"
        );
    }
    world.finish().await;
}

#[tokio::test]
async fn a_volume_of_the_image_can_be_written_in_a_read_only_root() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let script = "cat /data/note; echo new > /data/note && cat /data/note; echo x > /new/x && echo made; \
                  (echo x > /x) 2>/dev/null || echo kept";
    let config = json!({
        "Cmd": ["sh", "-c", script],
        "Env": ["PATH=/bin"],
        "Volumes": {"/data": {}, "/new": {}},
    });
    let layers = [base_layer(&busybox), file_layer("data/note", "old\n")];
    load(world.home.path(), "test/volumes:1", &layers, &config);
    for (name, read_only, last) in [("open", false, ""), ("closed", true, "kept")] {
        let mut config = of_image(&world, name, "test/volumes:1");
        config.security.read_only_root = read_only;
        let output = world.output_of(&config).await;
        let expected = format!("old\nnew\nmade\n{last}");
        assert_eq!(output, expected.trim_end(), "{name}");
    }
    world.finish().await;
}

#[tokio::test]
async fn a_user_whom_the_image_lacks_is_refused_when_the_container_is_made() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    let config = json!({"Cmd": ["true"], "Env": ["PATH=/bin"], "User": "ghost"});
    load(
        world.home.path(),
        "test/ghost:1",
        &[base_layer(&busybox)],
        &config,
    );
    let config = of_image(&world, "main", "test/ghost:1");
    let refused = world.runtime.create_container(&world.sandbox, &config).await;
    let message = refused.expect_err("is refused").to_string();
    assert!(
        message.contains("unable to find user ghost: no matching entries in passwd file"),
        "{message}"
    );
    // Files of the pod may know him.
    let passwd = world.shared("passwd");
    fs::write(&passwd, "ghost:x:77:77::/:/bin/sh\n").expect("writes");
    let mut config = of_image(&world, "known", "test/ghost:1");
    config.command = vec!["id".into(), "-u".into()];
    let mut mount = config.mounts[0].clone();
    (mount.container_path, mount.host_path) = ("/etc/passwd".into(), passwd);
    config.mounts.push(mount);
    assert_eq!(world.output_of(&config).await, "77");
    world.finish().await;
}

#[tokio::test]
async fn an_image_in_use_stays() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    load(
        world.home.path(),
        "test/used:1",
        &[base_layer(&busybox)],
        &json!({"Cmd": ["sleep", "1000"]}),
    );
    let image = world
        .runtime
        .image_status("test/used:1")
        .await
        .expect("answers")
        .expect("is there");
    let mut config = of_image(&world, "main", "test/used:1");
    config.image_id = image.id;
    let id = world.run_config(&config).await;
    let refused = world.runtime.remove_image("test/used:1").await;
    assert!(matches!(refused, Err(Error::Image(_))), "{refused:?}");
    world.runtime.remove_container(&id).await.expect("removes");
    world.runtime.remove_image("test/used:1").await.expect("removes");
    assert!(
        world
            .runtime
            .image_status("test/used:1")
            .await
            .expect("answers")
            .is_none()
    );
    let refused = world.runtime.pull_image("Not A Name", None).await;
    assert!(
        matches!(&refused, Err(Error::Image(error)) if error.kind == ImageErrorKind::InvalidName),
        "{refused:?}"
    );
    world.finish().await;
}
