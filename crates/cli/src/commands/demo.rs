//! `pulselet demo`: a small server that starts slowly, hangs, fails, leaves or ignores signals when told to.
//!
//! It is the workload of the examples and of the end-to-end tests. One port answers http, gRPC health checks and
//! plain connections. Milestones go to stdout, a line each.

mod health;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::cli::DemoArgs;
use crate::exit::{Exit, Failure};
use health::Timeline;
use server::Server;

/// The signals a demo reports, with their names; SIGKILL and SIGSTOP cannot be seen.
const SIGNALS: [(&str, i32); 6] = [
    ("SIGTERM", 15),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGHUP", 1),
];

pub(crate) fn run(args: &DemoArgs) -> Result<Exit, Failure> {
    for name in &args.ignore {
        if !SIGNALS.iter().any(|(known, _)| known == name) {
            let known = SIGNALS.map(|(name, _)| name).join(", ");
            return Err(
                Failure::usage(format!("cannot ignore {name:?}")).with_hint(format!("one of {known}"))
            );
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::environment(format!("cannot start: {error}")))?;
    let code = runtime.block_on(demo(args))?;
    // The exit code is the workload's, not the command's.
    Ok(Exit::Workload(code))
}

async fn demo(args: &DemoArgs) -> Result<u8, Failure> {
    let signals = SIGNALS
        .iter()
        .map(|(name, number)| Ok((*name, signal(SignalKind::from_raw(*number))?)))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(|error| Failure::environment(format!("cannot listen for signals: {error}")))?;
    say("start");
    let started = Instant::now();
    let timeline = Arc::new(Timeline::new(started, args));
    let workload = async {
        sleep_until(started + args.start_after).await;
        match args.port {
            None => std::future::pending().await,
            Some(port) => {
                Server::bind(port, args, Arc::clone(&timeline))
                    .await?
                    .serve()
                    .await
            }
        }
    };
    tokio::select! {
        failed = workload => failed.map(|()| 0),
        () = milestones(args, &timeline) => Ok(0),
        () = leave_at(started, args.exit_at) => {
            say(&format!("exit {}", args.exit_code));
            Ok(args.exit_code)
        }
        () = stop(signals, args) => Ok(0),
    }
}

/// Waits for a signal and stops, in its own time. Until then the demo goes on as if nothing had happened.
async fn stop(signals: Vec<(&'static str, Signal)>, args: &DemoArgs) {
    let name = stop_signal(signals, &args.ignore).await;
    say(&format!("got {name}"));
    tokio::time::sleep(args.stop_in).await;
    say("bye");
}

/// Says when it goes up and down, and keeps the health file as it should be. Never returns.
async fn milestones(args: &DemoArgs, timeline: &Timeline) {
    for (at, healthy) in timeline.switches() {
        sleep_until(at).await;
        if let Some(path) = &args.health_file {
            show_health(path, healthy);
        }
        say(if healthy { "up" } else { "down" });
    }
    std::future::pending::<()>().await;
}

fn show_health(path: &Path, healthy: bool) {
    let shown = if healthy {
        std::fs::write(path, "ok\n")
    } else {
        std::fs::remove_file(path)
    };
    if let Err(error) = shown {
        say(&format!("cannot change {}: {error}", path.display()));
    }
}

async fn leave_at(started: Instant, exit_at: Option<Duration>) {
    match exit_at {
        Some(age) => sleep_until(started + age).await,
        None => std::future::pending().await,
    }
}

/// Waits for a signal that is not ignored.
async fn stop_signal(signals: Vec<(&'static str, Signal)>, ignored: &[String]) -> &'static str {
    let (sender, mut received) = tokio::sync::mpsc::channel(SIGNALS.len());
    for (name, mut stream) in signals {
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if sender.send(name).await.is_err() {
                    return;
                }
            }
        });
    }
    while let Some(name) = received.recv().await {
        if !ignored.iter().any(|ignored| ignored == name) {
            return name;
        }
        say(&format!("ignored {name}"));
    }
    std::future::pending().await
}

/// Writes a line at once; a reader that has gone away is no reason to stop.
fn say(line: &str) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}

/// A duration of a demo's flags.
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    super::parse_span(text).map(Duration::from)
}
