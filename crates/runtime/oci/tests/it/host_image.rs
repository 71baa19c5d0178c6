//! What containers of the built-in image see of the machine.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::Path,
};

use pulselet_runtime::{AppArmor, Runtime};
use pulselet_runtime_oci::{HOST_IMAGE, OciRuntime};
use rustix::fs::{XattrFlags, setxattr};

use crate::{
    escapes::{SECRET, hide_secret, run_both_ways},
    world::{World, can_run, options},
};

/// A group that owns nothing of the machine.
const GROUP: u32 = 4242;

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

/// The class of sockets that give a container what their service can do: a container runtime's, an agent's for keys. However
/// many there are, and however deep.
#[tokio::test]
async fn a_container_sees_no_socket_of_a_service() {
    /// More than anybody would hide one by one.
    const MANY: usize = 300;
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let service = tempfile::tempdir_in("/run").expect("a directory");
    let deep = service.path().join("user/1000/podman");
    fs::create_dir_all(&deep).expect("makes");
    let bind = |path: &Path| UnixListener::bind(path).expect("binds");
    let _deep = bind(&deep.join("it.sock"));
    let sockets: Vec<_> = (0..MANY)
        .map(|number| bind(&service.path().join(number.to_string())))
        .collect();
    let script = "find /run /var/run/ -type s; touch /run/own && ls -A /run";
    assert_eq!(world.output_of(&world.config("main", script)).await, "own");
    drop(sockets);
    world.finish().await;
}

/// The class of mounts that cover instead of being in the place of what they cover: whoever may mount takes them away, or
/// looks beneath them from elsewhere.
#[tokio::test]
async fn what_hides_secrets_stays_also_for_who_may_mount() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let secret = hide_secret(&world);
    let home = world.home.path().display();
    let script = format!(
        "exec 2>&1; cd /; mkdir -p /x/bind /x/all /x/over /x/moved /x/old
         look() {{ cat $1 2>/dev/null; }}
         umount {home}; umount -l {home}; look {secret}
         mount --bind / /x/bind && look /x/bind{secret}
         mount --bind $(dirname {home}) /x/bind && look /x/bind/$(basename {home})/secret
         mount --rbind / /x/all && umount -l /x/all{home}; look /x/all{secret}
         mount -t overlay -o lowerdir=/:/x over /x/over && look /x/over{secret}
         mount --move {home} /x/moved; look {secret}
         unshare -m sh -c 'umount -l {home}; umount -R -l /; cat {secret}'
         unshare -m --propagation slave sh -c 'umount -l {home}; cat {secret}'
         mount -t tmpfs t /x/old && echo may mount; umount /x/old && echo may unmount
         umount -l /etc/shadow; look /etc/shadow; mount -o remount,rw,bind /etc/shadow && echo remounted
         pivot_root /x/all /x/all/x/old && cat /x/old{secret}
         echo tried"
    );
    let mut config = world.config("main", "");
    config.security.capabilities.add = vec!["SYS_ADMIN".into()];
    config.security.app_armor = Some(AppArmor::Unconfined);
    for output in run_both_ways(&world, &script, &config).await {
        for word in ["tried", "may mount", "may unmount"] {
            assert!(output.contains(word), "{output}");
        }
        assert!(!output.contains(SECRET), "{output}");
        assert!(
            !output.contains("root:") && !output.contains("remounted"),
            "{output}"
        );
    }
    // Who has not the right to mount has not got it by that.
    config.name = "without".into();
    config.security.capabilities.add = Vec::new();
    for output in run_both_ways(&world, &script, &config).await {
        assert!(
            output.contains("tried") && !output.contains("may mount"),
            "{output}"
        );
    }
    world.finish().await;
}

#[tokio::test]
async fn what_is_hidden_is_not_there_and_a_volume_may_take_its_place() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let secret = hide_secret(&world);
    let home = world.home.path().display();
    let script = format!(
        "ls -d {home} /etc/shadow 2>/dev/null; stat -c '%n %a %u %g' /etc /root /tmp
         mkdir {home} && ls -A {home}; ls /etc/ssl/private; cat {secret} 2>/dev/null; true"
    );
    let mut config = world.config("main", &script);
    let mut volume = config.mounts[0].clone();
    volume.container_path = "/etc/ssl/private".into();
    config.mounts.push(volume);
    fs::write(world.shared("of-the-pod"), "").expect("writes");
    let models = ["/etc", "/root", "/tmp"].map(|path| {
        let found = fs::metadata(path).expect("is there");
        format!(
            "{path} {:o} {} {}",
            found.mode() & 0o7777,
            found.uid(),
            found.gid()
        )
    });
    let seen = world.output_of(&config).await;
    assert_eq!(seen, format!("{}\nof-the-pod", models.join("\n")));
    world.finish().await;
}

/// A list of who may do what says less than the mode of a directory where that shows the most that anyone may.
#[tokio::test]
async fn directories_around_what_is_hidden_open_to_nobody_else() {
    if !can_run() {
        return;
    }
    let mut world = World::without_sandbox().await;
    let outer = tempfile::tempdir().expect("a directory");
    let hidden = outer.path().join("data");
    fs::create_dir(&hidden).expect("makes");
    fs::write(outer.path().join("letter"), SECRET).expect("writes");
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o770)).expect("changes");
    chown(outer.path(), None, Some(GROUP)).expect("changes");
    // Version 2. Then the owner: all; the group: nothing; the most that it could have: all; others: nothing.
    let entries: [(u16, u16); 4] = [(0x01, 7), (0x04, 0), (0x10, 7), (0x20, 0)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(u32::MAX.to_le_bytes());
    }
    setxattr(
        outer.path(),
        "system.posix_acl_access",
        &list,
        XattrFlags::empty(),
    )
    .expect("takes a list");
    let mut options = options(world.home.path());
    options.data_dir = hidden;
    world.runtime = OciRuntime::open(options).await.expect("opens");
    world.sandbox = world.add_sandbox("pod", crate::world::on_host_network()).await;
    let script = format!("cat {}/letter; true", outer.path().display());
    let as_root = world.output_of(&world.config("main", &script)).await;
    assert_eq!(as_root, SECRET, "root may read it");
    let mut config = world.config("other", &script);
    config.security.run_as_user = Some(1000);
    config.security.run_as_group = Some(GROUP);
    let as_member = world.output_of(&config).await;
    assert!(as_member.contains("Permission denied"), "{as_member}");
    world.finish().await;
}
