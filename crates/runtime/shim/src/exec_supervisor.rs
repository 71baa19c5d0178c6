//! Supervising one exec process.
//!
//! A supervisor is a copy of the shim made by fork, with the client's connection and nothing else. It is the parent of
//! the exec process and a subreaper, so that everything the command starts stays below it, apart from the rest of the
//! container, and can be killed when the time is over. What a command leaves behind when it ends by itself becomes the
//! shim's, as processes in a container become those of its init process.

use std::{
    collections::HashSet,
    io,
    process::ExitCode,
    time::{Duration, Instant},
};

use pulselet_runtime::{ExecOutcome, Signal};
use pulselet_sys::{ChildSignals, Pid, send_signal};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::{WaitOptions, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, wait},
};

use crate::{
    connection::Connection,
    exec_streams::{CollectedOutput, InteractiveStreams},
    exit_status::exit_code_of,
    launcher::{LaunchError, Launcher},
    poll_wait::wait_for,
    process_tree,
    protocol::{Channel, ExecCall, Reply, ShimRefusal, StreamCall},
};

/// Between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// After this the client gets its answer although something is left that the kernel cannot kill now. The shim
/// inherits it.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// After this a process that should wait for what the command has left is killed too: something holds it up.
const REAPER_PATIENCE: Duration = Duration::from_secs(2);

/// How long a client has to take the last of the output.
const LAST_OUTPUT: Duration = Duration::from_mins(1);

/// What a supervisor is started for.
#[derive(Debug)]
pub(crate) enum ExecJob {
    /// A bounded command, whose output the client gets at its end.
    Sync(ExecCall),
    /// An interactive command.
    Stream(StreamCall),
}

/// The whole life of a supervisor. Its exit code is read by nobody: the client has its answer.
pub(crate) fn run<L: Launcher>(shim: Pid, launcher: L, mut connection: Connection, job: ExecJob) -> ExitCode {
    let result = become_supervisor(shim)
        .map_err(LaunchError::Spawn)
        .and_then(|signals| match job {
            ExecJob::Sync(call) => run_sync(launcher, &signals, &mut connection, &call),
            ExecJob::Stream(call) => run_stream(launcher, &signals, &mut connection, &call),
        });
    if let Err(error) = result {
        connection.send(&match error {
            LaunchError::CannotRun(message) => Reply::CannotRun { message },
            LaunchError::Spawn(error) => Reply::Refused(ShimRefusal::Failed {
                detail: error.to_string(),
            }),
        });
    }
    connection.finish(LAST_OUTPUT);
    ExitCode::SUCCESS
}

fn become_supervisor(shim: Pid) -> io::Result<ChildSignals> {
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if getppid() != Some(shim) {
        return Err(io::Error::other("the shim is gone"));
    }
    set_child_subreaper(Some(getpid()))?;
    ChildSignals::new()
}

/// A bounded command: the client waits for its output and its end. It runs on if the client leaves, because hooks do
/// their work for the container, not for the agent.
fn run_sync<L: Launcher>(
    mut launcher: L,
    signals: &ChildSignals,
    connection: &mut Connection,
    call: &ExecCall,
) -> Result<(), LaunchError> {
    let (mut outputs, streams) = if call.separate_stderr {
        let (outputs, streams) = CollectedOutput::open_separately(call.output_limit)?;
        (Vec::from(outputs), streams)
    } else {
        let (output, streams) = CollectedOutput::open(call.output_limit)?;
        (vec![output], streams)
    };
    let deadline = call
        .timeout_ms
        .and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    let exec = launcher.start_exec(&call.command, streams)?;
    let outcome = loop {
        if let Some(code) = reap(exec).exec_code {
            break ExecOutcome::Exited(code);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            kill_tree(&launcher, exec, signals);
            break ExecOutcome::TimedOut;
        }
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        let readers = outputs.iter().filter_map(|output| output.reader.as_ref());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        wait_for(&mut fds, deadline);
        signals.clear();
        outputs.iter_mut().for_each(CollectedOutput::collect);
    };
    outputs.iter_mut().for_each(CollectedOutput::collect);
    connection.send(&Reply::ExecDone {
        outcome,
        truncated: outputs.iter().any(|output| output.truncated),
    });
    for output in &outputs {
        connection.send_raw(&[&output.bytes]);
    }
    Ok(())
}

/// An interactive command: it ends when its client does.
fn run_stream<L: Launcher>(
    mut launcher: L,
    signals: &ChildSignals,
    connection: &mut Connection,
    call: &StreamCall,
) -> Result<(), LaunchError> {
    let multiplexer = call.tty.then(|| launcher.open_multiplexer()).flatten();
    let (mut streams, child_streams) = InteractiveStreams::open(call, multiplexer)?;
    let exec = launcher.start_exec(&call.command, child_streams)?;
    connection.send(&Reply::Streaming);
    loop {
        if let Some(code) = reap(exec).exec_code {
            streams.forward_remains(connection);
            connection.send_stream(Channel::Exit, code.to_string().as_bytes());
            return Ok(());
        }
        if connection.ended() {
            kill_tree(&launcher, exec, signals);
            return Ok(());
        }
        let client_sent = streams.wait(signals, connection);
        signals.clear();
        connection.flush();
        if client_sent {
            take_frames(connection, &mut streams);
        }
        streams.flush_stdin();
        streams.forward(connection);
    }
}

/// Takes what the client has sent.
fn take_frames(connection: &mut Connection, streams: &mut InteractiveStreams) {
    connection.fill();
    loop {
        match connection.next_frame() {
            Ok(Some(frame)) => streams.take_frame(&frame),
            Ok(None) => return,
            Err(_) => return connection.hang_up(),
        }
    }
}

struct Reaped {
    /// The exit code of the exec process, if it ended just now.
    exec_code: Option<i32>,
    any_left: bool,
}

/// Waits for all that have ended.
fn reap(exec: Pid) -> Reaped {
    let mut exec_code = None;
    let any_left = loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == exec => exec_code = Some(exit_code_of(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    Reaped { exec_code, any_left }
}

/// Kills the exec process and all it has started, and waits for them.
fn kill_tree<L: Launcher>(launcher: &L, exec: Pid, signals: &ChildSignals) {
    let begun = Instant::now();
    let mut spared = HashSet::new();
    if launcher.reaps_exec() {
        let _ = send_signal(exec, Signal::TERM.number());
        spared.insert(exec);
    }
    while reap(exec).any_left && begun.elapsed() < KILL_PATIENCE {
        if begun.elapsed() > REAPER_PATIENCE {
            spared.clear();
        }
        process_tree::kill_descendants(getpid(), &spared);
        wait_for(
            &mut [PollFd::new(signals, PollFlags::IN)],
            Some(Instant::now() + KILL_INTERVAL),
        );
        signals.clear();
    }
}
