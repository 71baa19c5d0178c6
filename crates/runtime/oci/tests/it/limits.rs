//! Resources: what is limited, what is counted.

use pulselet_runtime::{ContainerState, ExitCause, Resources, Runtime};

use crate::world::{World, can_run, eventually, init_pid};

#[tokio::test]
async fn a_memory_hog_is_killed_and_reported() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config("main", "");
    config.command = vec![
        "python3".into(),
        "-c".into(),
        "b = bytearray(300 * 1024 * 1024)".into(),
    ];
    config.resources.memory_limit = Some(32 << 20);
    let id = world.run_config(&config).await;
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.reason), (137, ExitCause::OomKilled));
    world.finish().await;
}

/// How a container ends whose own program goes on after a child was killed for memory, and then exits with `code`.
async fn exit_after_a_childs_death(code: i32) -> (i32, ExitCause) {
    let world = World::new().await;
    let script = format!(
        "mkfifo /shared/go; echo up > /shared/up; cat /shared/go
         python3 -c 'b = bytearray(300 * 1024 * 1024)'; [ $? = 137 ] && exit {code}; exit 99"
    );
    let mut config = world.config("main", &script);
    config.resources.memory_limit = Some(32 << 20);
    let id = world.run_config(&config).await;
    world.file("up").await;
    kill_single_processes(&init_pid(&world.container_dir(&id)));
    std::fs::write(world.shared("go"), "").expect("the container reads");
    let exit = world.wait_for_exit(&id).await;
    world.finish().await;
    (exit.code, exit.reason)
}

/// Lets the kernel kill a single process of a container for memory, which it does anyway with cgroups of version 1.
fn kill_single_processes(init: &str) {
    let groups = std::fs::read_to_string(format!("/proc/{init}/cgroup")).expect("it runs");
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let mount = std::path::Path::new("/sys/fs/cgroup");
    if let Some(path) = unified.filter(|_| mount.join("cgroup.controllers").exists()) {
        std::fs::write(mount.join(path).join("memory.oom.group"), "0").expect("writes");
    }
}

#[tokio::test]
async fn a_child_killed_for_memory_is_not_the_end_of_its_container() {
    if !can_run() {
        return;
    }
    assert_eq!(exit_after_a_childs_death(0).await, (0, ExitCause::Completed));
    assert_eq!(exit_after_a_childs_death(3).await, (3, ExitCause::Error));
    // A shell's word for a child that was killed.
    assert_eq!(exit_after_a_childs_death(137).await, (137, ExitCause::Error));
}

#[tokio::test]
async fn a_kill_after_a_childs_death_for_memory_is_no_lack_of_memory() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "mkfifo /shared/go; echo up > /shared/up; cat /shared/go
        python3 -c 'b = bytearray(300 * 1024 * 1024)'; echo $? > /shared/killed; exec sleep 1000";
    let mut config = world.config("main", script);
    config.resources.memory_limit = Some(32 << 20);
    let id = world.run_config(&config).await;
    world.file("up").await;
    kill_single_processes(&init_pid(&world.container_dir(&id)));
    std::fs::write(world.shared("go"), "").expect("the container reads");
    assert_eq!(world.file("killed").await.trim(), "137");
    let stopped = world.runtime.stop_container(&id, std::time::Duration::ZERO);
    stopped.await.expect("stops");
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.reason), (137, ExitCause::Error));
    world.finish().await;
}

#[tokio::test]
async fn a_fork_bomb_hits_the_limit_and_dies_with_its_container() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config("main", "");
    config.command = vec![
        "bash".into(),
        "-c".into(),
        "echo up > /shared/up; bomb() { bomb | bomb & sleep 1000; }; bomb 2>/dev/null; exec sleep 1000"
            .into(),
    ];
    config.resources.pids_limit = Some(40);
    let id = world.run_config(&config).await;
    world.file("up").await;
    let refused = eventually("the limit is reached", async || {
        let count = world
            .traces()
            .iter()
            .filter(|trace| trace.starts_with("process /proc"))
            .count();
        assert!(count <= 42, "{count} processes");
        (count >= 40).then_some(())
    });
    refused.await;
    world
        .runtime
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .expect("stops");
    world.finish().await;
}

#[tokio::test]
async fn limits_are_those_asked_for_and_visible_inside() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config("main", "");
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let script = if v2 {
        "cd /sys/fs/cgroup; cat memory.max pids.max cpu.max"
    } else {
        "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes pids/pids.max cpu/cpu.cfs_quota_us"
    };
    config.command = vec!["sh".into(), "-c".into(), script.into()];
    config.resources = Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(17),
        ..Resources::default()
    };
    let quota = if v2 { "50000 100000" } else { "50000" };
    assert_eq!(world.output_of(&config).await, format!("67108864\n17\n{quota}"));
    world.finish().await;
}

#[tokio::test]
async fn use_is_counted() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world
        .run("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo up > /shared/up; exec sleep 1000")
        .await;
    world.file("up").await;
    let stats = world.runtime.container_stats(&id).await.expect("is measured");
    assert!(stats.cpu_nanos > 1_000_000, "{stats:?}");
    assert!(
        stats.memory_usage >= stats.memory_working_set && stats.memory_working_set > 0,
        "{stats:?}"
    );
    assert!(matches!(
        world.status(&id).await.state,
        ContainerState::Running { .. }
    ));
    world.finish().await;
}

#[tokio::test]
async fn a_container_has_the_oom_score_of_its_class_as_far_as_the_kernel_lets_it() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("reads");
    for (wanted, instead) in [("1000", "1000"), ("999", "999"), ("-997", own.trim())] {
        let mut config = world.config(&format!("score{wanted}"), "cat /proc/self/oom_score_adj");
        config.resources.oom_score_adj = wanted.parse().ok();
        let score = world.output_of(&config).await;
        assert!(score == wanted || score == instead, "{wanted}: {score}");
    }
    world.finish().await;
}
