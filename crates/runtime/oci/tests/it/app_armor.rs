//! `AppArmor` profiles: applied where the kernel has them, refused where it has not.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use pulselet_runtime::{AppArmor, ContainerConfig, Runtime};

use crate::{
    escapes::{run_both_ways, start},
    world::{FOREVER, World, can_run},
};

const DEFAULT: &str = "pulselet-default (enforce)";
/// The profile, and whether a file can be written that one of them forbids, and whether something can be mounted.
const SCRIPT: &str = "cat /proc/self/attr/current; (echo x > /shared/forbidden) && echo written; echo x > /shared/free && \
     echo free; mount -t tmpfs t /mnt && echo mounted";

/// A profile that is loaded as an administrator would, and removed at the end.
struct Loaded(String);

impl Loaded {
    fn load(name: String) -> Self {
        let text = format!(
            "profile {name} flags=(attach_disconnected,mediate_deleted) {{\n  capability,\n  file,\n  network,\n  signal,\n  \
             mount,\n  deny /shared/forbidden w,\n}}\n"
        );
        parser("--replace", &text);
        Self(name)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        parser("--remove", &format!("profile {} {{\n}}\n", self.0));
    }
}

fn parser(verb: &str, text: &str) {
    let mut child = Command::new("apparmor_parser")
        .args([verb, "--skip-cache"])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::piped())
        .spawn()
        .expect("it is there, or the runtime would not have loaded its profile");
    let mut stdin = child.stdin.take().expect("has stdin");
    stdin.write_all(text.as_bytes()).expect("writes");
    drop(stdin);
    assert!(child.wait().expect("ends").success(), "{verb}: {text}");
}

fn asking(world: &World, name: &str, app_armor: Option<AppArmor>) -> ContainerConfig {
    let mut config = world.config(name, "");
    config.security.app_armor = app_armor;
    config
}

/// Whether this machine has profiles. Where it has none, those who ask for one are refused.
async fn has_profiles(world: &World) -> bool {
    let version = world.runtime.version().await.expect("is known");
    if version.features.security.app_armor {
        return true;
    }
    for wanted in [AppArmor::RuntimeDefault, AppArmor::Localhost("mine".into())] {
        let refusal = start(world, &asking(world, "refused", Some(wanted))).await;
        let refusal = refusal.expect_err("it is refused");
        assert!(refusal.contains("appArmorProfile"), "{refusal}");
    }
    let unconfined = asking(world, "unconfined", Some(AppArmor::Unconfined));
    start(world, &unconfined)
        .await
        .expect("who asks for nothing gets it");
    false
}

#[tokio::test]
async fn containers_run_under_the_app_armor_profile_they_ask_for() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    if has_profiles(&world).await {
        let mine = Loaded::load(format!("pulselet-test-{}", std::process::id()));
        let enforced = format!("{} (enforce)", mine.0);
        for (name, wanted, profile, written) in [
            ("silent", None, DEFAULT, true),
            ("default", Some(AppArmor::RuntimeDefault), DEFAULT, true),
            (
                "mine",
                Some(AppArmor::Localhost(mine.0.clone())),
                &enforced,
                false,
            ),
            ("none", Some(AppArmor::Unconfined), "unconfined", true),
        ] {
            let config = asking(&world, name, wanted);
            for output in run_both_ways(&world, SCRIPT, &config).await {
                assert!(output.contains(profile), "{name}: {output}");
                assert_eq!(output.contains("written"), written, "{name}: {output}");
                assert!(output.contains("free"), "{name}: {output}");
            }
        }
        let missing = asking(
            &world,
            "missing",
            Some(AppArmor::Localhost("no-such-profile".into())),
        );
        let refusal = start(&world, &missing).await.expect_err("it is not loaded");
        assert!(refusal.contains("load it with apparmor_parser"), "{refusal}");
    }
    world.finish().await;
}

#[tokio::test]
async fn the_default_profile_holds_where_a_capability_would_not() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    if has_profiles(&world).await {
        let mut config = asking(&world, "capable", None);
        config.security.capabilities.add = vec!["SYS_ADMIN".into()];
        for output in run_both_ways(&world, SCRIPT, &config).await {
            assert!(!output.contains("mounted"), "{output}");
        }
        let mut config = asking(&world, "privileged", None);
        config.security.privileged = true;
        for output in run_both_ways(&world, SCRIPT, &config).await {
            assert!(
                output.contains("unconfined") && output.contains("mounted"),
                "{output}"
            );
        }
        // The shim's signals arrive.
        let polite = world.config(
            "polite",
            "trap 'exit 7' TERM; echo up > /shared/up; while :; do sleep 0.05; done",
        );
        let id = world.run_config(&polite).await;
        world.file("up").await;
        let stopped = world.runtime.stop_container(&id, FOREVER).await;
        stopped.expect("it is stopped");
        assert_eq!(world.wait_for_exit(&id).await.code, 7);
    }
    world.finish().await;
}
