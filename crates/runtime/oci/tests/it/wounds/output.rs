//! What a container prints costs nobody but itself.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pulselet_runtime::{ExecOptions, ExecRequest, Runtime};
use tokio::io::AsyncReadExt;

use crate::world::{FOREVER, World, can_run, init_pid, parent_of};

/// Bytes that a program prints at once, without a line's end.
const FLOOD: usize = 64 << 20;

/// KiB that a shim may have ever had in memory.
const MAX_MEMORY: u64 = 48 << 10;

/// The most memory that the process or one of its children has ever had, in KiB.
fn peak(shim: &str) -> u64 {
    let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap_or_default();
    let peak = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
            .unwrap_or(0)
    };
    // The init process is a child as well, and costs what it costs.
    let ours = |pid: &&str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.contains("shim")
    };
    let mut all = children.split_ascii_whitespace().filter(ours).map(peak);
    let most = all.by_ref().max().unwrap_or(0);
    most.max(peak(shim))
}

/// CVE-2022-1708, CVE-2022-31030: the output of a command is kept in memory to its end.
#[tokio::test]
async fn endless_output_takes_no_memory() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let flood = format!("head -c {FLOOD} /dev/zero");
    let id = world
        .run(&format!("{flood}; echo; echo > /shared/printed; exec sleep 1000"))
        .await;
    let shim = parent_of(&init_pid(&world.container_dir(&id)));
    let over = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let (shim, over) = (shim.clone(), Arc::clone(&over));
        move || {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(peak(&shim));
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            most
        }
    });
    world.file("printed").await;
    let request = ExecRequest {
        command: vec!["sh".into(), "-c".into(), flood.clone()],
        timeout: Some(FOREVER),
        output_limit: 10 << 10,
    };
    let output = world.runtime.exec_sync(&id, &request).await.expect("runs");
    assert!(output.output.len() <= 10 << 10 && output.truncated);
    // A reader that does not read stops the writer.
    let options = ExecOptions {
        command: request.command.clone(),
        tty: false,
        stdin: false,
        stdout: true,
        stderr: true,
        term: None,
    };
    let mut streams = world.runtime.exec(&id, &options).await.expect("opens");
    let mut stdout = streams.stdout.take().expect("has stdout");
    let mut count = 0;
    let mut buffer = vec![0; 64 << 10];
    while count < FLOOD {
        match stdout.read(&mut buffer).await.expect("reads") {
            0 => break,
            read => count += read,
        }
    }
    assert_eq!(count, FLOOD);
    over.store(true, Ordering::Relaxed);
    let most = watcher.join().expect("watches");
    assert!(most > 0 && most < MAX_MEMORY, "{most} KiB");
    world.finish().await;
}
