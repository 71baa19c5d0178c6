//! What containers of the built-in image see of the machine.

use std::{fs, os::unix::fs::symlink};

use pulselet_runtime::{AppArmor, Runtime};
use pulselet_runtime_oci::{HOST_IMAGE, OciRuntime};

use crate::{
    escapes::{SECRET, hide_secret, run_both_ways},
    world::{World, can_run, options},
};

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
