//! Running one command beside the main process.
//!
//! A supervisor is a copy of the shim made by fork, with the client's connection and nothing else. It is the
//! command's parent and a subreaper, so that everything the command starts stays below it, apart from the rest of the
//! container, and can be killed when the time is over. What a command leaves behind when it ends by itself becomes the
//! shim's, as processes in a container become those of its first process.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::fd::OwnedFd,
    process::ExitCode,
    time::{Duration, Instant},
};

use pulselet_runtime::ExecOutcome;
use pulselet_sys::{ChildSignals, Pid, send_signal};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{
        Signal, WaitOptions, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, wait,
    },
};

use crate::{
    connection::Connection,
    launch::{ChildStreams, ExecCommand, LaunchError, Launcher},
    output::nonblocking,
    protocol::{Channel, ExecCall, MAX_FRAME, MAX_STREAM_DATA, Reply, ShimRefusal, StreamCall},
    shim::{exit_code, timespec},
    terminal, tree,
};

/// Between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// After this the client gets its answer although something is left that the kernel cannot kill now. The shim
/// inherits it.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// After this a process that should wait for what the command has left is killed too: something holds it up.
const REAPER_PATIENCE: Duration = Duration::from_secs(2);

const SIGTERM: i32 = 15;

/// Bytes a client may be behind before the command has to wait.
const MAX_BACKLOG: usize = 256 * 1024;

/// Pieces of output taken before looking at anything else; more than a pipe holds.
const READS_A_TURN: usize = 16;

/// How long a client has to take the last of the output.
const LAST_OUTPUT: Duration = Duration::from_mins(1);

/// Typed bytes that wait for the command to read them; above this the client has to wait.
const MAX_TYPED: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) enum Job {
    Exec(ExecCall),
    Stream(StreamCall),
}

/// The whole life of a supervisor. Its exit code is read by nobody: the client has its answer.
pub(crate) fn run<L: Launcher>(shim: Pid, launcher: L, mut connection: Connection, job: Job) -> ExitCode {
    let result = settle(shim)
        .map_err(LaunchError::Spawn)
        .and_then(|signals| match job {
            Job::Exec(call) => run_exec(launcher, &signals, &mut connection, &call),
            Job::Stream(call) => run_stream(launcher, &signals, &mut connection, &call),
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

/// Makes this process a supervisor.
fn settle(shim: Pid) -> io::Result<ChildSignals> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(shim) {
        return Err(io::Error::other("the shim is gone"));
    }
    set_child_subreaper(Some(getpid()))?;
    ChildSignals::new()
}

/// A bounded command: the client waits for its output and its end. It runs on if the client leaves, because hooks do
/// their work for the container, not for the agent.
fn run_exec<L: Launcher>(
    mut launcher: L,
    signals: &ChildSignals,
    connection: &mut Connection,
    call: &ExecCall,
) -> Result<(), LaunchError> {
    let (reader, writer) = io::pipe()?;
    let mut output = Collected {
        reader: Some(nonblocking(reader.into())?),
        bytes: Vec::new(),
        limit: call.output_limit.min(MAX_FRAME),
        truncated: false,
    };
    let streams = ChildStreams {
        stdin: File::open("/dev/null")?.into(),
        stdout: writer.try_clone()?.into(),
        stderr: writer.into(),
        terminal: false,
    };
    let deadline = call
        .timeout_ms
        .and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    let main = launcher.launch_exec(
        &ExecCommand {
            command: call.command.clone(),
            terminal: false,
        },
        streams,
    )?;
    let outcome = loop {
        if let Children {
            main_code: Some(code),
            ..
        } = reap(main)
        {
            break ExecOutcome::Exited(code);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            kill_tree(&mut launcher, main, signals);
            break ExecOutcome::TimedOut;
        }
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        fds.extend(
            output
                .reader
                .as_ref()
                .map(|reader| PollFd::new(reader, PollFlags::IN)),
        );
        wait_for(&mut fds, deadline);
        signals.clear();
        output.collect();
    };
    output.collect();
    connection.send(&Reply::ExecDone {
        outcome,
        truncated: output.truncated,
    });
    connection.send_raw(&[&output.bytes]);
    Ok(())
}

/// Output kept up to a limit. What is beyond is read and thrown away, so that the command does not block.
struct Collected {
    /// None once it has ended.
    reader: Option<OwnedFd>,
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Collected {
    /// Takes what there is, but not for ever: the command may write faster than we read.
    fn collect(&mut self) {
        for _ in 0..READS_A_TURN {
            match read_chunk(&mut self.reader) {
                None => return,
                Some(chunk) => {
                    let room = self.limit - self.bytes.len();
                    self.truncated |= chunk.len() > room;
                    self.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
                }
            }
        }
    }
}

/// An interactive command: it ends when its client does.
fn run_stream<L: Launcher>(
    mut launcher: L,
    signals: &ChildSignals,
    connection: &mut Connection,
    call: &StreamCall,
) -> Result<(), LaunchError> {
    let (mut pipes, streams) = Pipes::open(call)?;
    let command = ExecCommand {
        command: call.command.clone(),
        terminal: call.tty,
    };
    let main = launcher.launch_exec(&command, streams)?;
    connection.send(&Reply::Streaming);
    loop {
        if let Children {
            main_code: Some(code),
            ..
        } = reap(main)
        {
            pipes.forward_all(connection);
            connection.send_stream(Channel::Exit, code.to_string().as_bytes());
            return Ok(());
        }
        if connection.ended() {
            kill_tree(&mut launcher, main, signals);
            return Ok(());
        }
        let heard = pipes.wait(signals, connection);
        signals.clear();
        connection.flush();
        if heard {
            connection.fill();
            loop {
                match connection.next_frame() {
                    Ok(Some(frame)) => pipes.client_says(&frame),
                    Ok(None) => break,
                    Err(_) => {
                        connection.hang_up();
                        break;
                    }
                }
            }
        }
        pipes.push_typed();
        if connection.backlog() < MAX_BACKLOG {
            pipes.forward(connection);
        }
    }
}

/// Our ends of an interactive command's streams.
struct Pipes {
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    stdin: Option<OwnedFd>,
    typed: Vec<u8>,
    stdin_ending: bool,
    terminal: Option<OwnedFd>,
}

impl Pipes {
    fn open(call: &StreamCall) -> io::Result<(Self, ChildStreams)> {
        let mut pipes = Self {
            stdout: None,
            stderr: None,
            stdin: None,
            typed: Vec::new(),
            stdin_ending: false,
            terminal: None,
        };
        if call.tty {
            let (ours, theirs) = terminal::open()?;
            pipes.stdout = Some(nonblocking(ours.try_clone()?)?);
            pipes.stdin = call.stdin.then(|| ours.try_clone()).transpose()?;
            pipes.terminal = Some(ours);
            let (stdin, stdout) = (theirs.try_clone()?, theirs.try_clone()?);
            return Ok((
                pipes,
                ChildStreams {
                    stdin,
                    stdout,
                    stderr: theirs,
                    terminal: true,
                },
            ));
        }
        let (stdout, their_stdout) = io::pipe()?;
        let (stderr, their_stderr) = io::pipe()?;
        pipes.stdout = Some(nonblocking(stdout.into())?);
        pipes.stderr = Some(nonblocking(stderr.into())?);
        let stdin = if call.stdin {
            let (theirs, ours) = io::pipe()?;
            pipes.stdin = Some(nonblocking(ours.into())?);
            theirs.into()
        } else {
            File::open("/dev/null")?.into()
        };
        let (stdout, stderr) = (their_stdout.into(), their_stderr.into());
        Ok((
            pipes,
            ChildStreams {
                stdin,
                stdout,
                stderr,
                terminal: false,
            },
        ))
    }

    /// Waits for anything to do. Returns whether the client has something to say.
    fn wait(&self, signals: &ChildSignals, connection: &Connection) -> bool {
        let client = connection.interest(self.typed.len() < MAX_TYPED);
        let mut fds = vec![
            PollFd::new(connection, client),
            PollFd::new(signals, PollFlags::IN),
        ];
        if connection.backlog() < MAX_BACKLOG {
            let sources = [&self.stdout, &self.stderr].into_iter().flatten();
            fds.extend(sources.map(|source| PollFd::new(source, PollFlags::IN)));
        }
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.typed.is_empty()) {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        wait_for(&mut fds, None);
        fds[0]
            .revents()
            .intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
    }

    fn client_says(&mut self, frame: &[u8]) {
        match Channel::split(frame) {
            Some((Channel::Stdin, data)) if self.stdin.is_some() => self.typed.extend_from_slice(data),
            Some((Channel::StdinEnd, _)) => self.stdin_ending = self.terminal.is_none(),
            Some((Channel::Resize, data)) => {
                if let (Some(terminal), Ok(size)) = (&self.terminal, serde_json::from_slice(data)) {
                    terminal::resize(terminal, size);
                }
            }
            Some((Channel::Stdin | Channel::Stdout | Channel::Stderr | Channel::Exit, _)) | None => {}
        }
    }

    fn push_typed(&mut self) {
        while let Some(stdin) = &self.stdin
            && !self.typed.is_empty()
        {
            match rustix::io::write(stdin, &self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.stdin = None;
                    self.typed = Vec::new();
                }
            }
        }
        if self.stdin_ending {
            self.stdin = None;
        }
    }

    /// Sends one piece of each stream to the client. Returns whether there was any.
    fn forward(&mut self, connection: &mut Connection) -> bool {
        let mut any = false;
        for (source, channel) in [
            (&mut self.stdout, Channel::Stdout),
            (&mut self.stderr, Channel::Stderr),
        ] {
            if let Some(chunk) = read_chunk(source) {
                connection.send_stream(channel, &chunk);
                any = true;
            }
        }
        any
    }

    /// Sends what the command left in its pipes.
    fn forward_all(&mut self, connection: &mut Connection) {
        for _ in 0..READS_A_TURN {
            if !self.forward(connection) {
                return;
            }
        }
    }
}

/// What is there to read now; none when there is nothing, and then perhaps never will be.
fn read_chunk(source: &mut Option<OwnedFd>) -> Option<Vec<u8>> {
    let mut chunk = [0; MAX_STREAM_DATA];
    match rustix::io::read(source.as_ref()?, &mut chunk) {
        Ok(count @ 1..) => Some(chunk[..count].to_vec()),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Ok(0) | Err(_) => {
            *source = None;
            None
        }
    }
}

struct Children {
    /// The command's exit code, if it ended just now.
    main_code: Option<i32>,
    any_left: bool,
}

/// Waits for all that have ended.
fn reap(main: Pid) -> Children {
    let mut main_code = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == main => main_code = Some(exit_code(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                return Children {
                    main_code,
                    any_left: true,
                };
            }
            Err(_) => {
                return Children {
                    main_code,
                    any_left: false,
                };
            }
        }
    }
}

/// Kills the command and all it has started, and waits for them.
fn kill_tree<L: Launcher>(launcher: &mut L, main: Pid, signals: &ChildSignals) {
    let begun = Instant::now();
    let mut spared = HashSet::new();
    if launcher.reaps_exec() {
        let _ = send_signal(main, SIGTERM);
        spared.insert(main);
    }
    while reap(main).any_left && begun.elapsed() < KILL_PATIENCE {
        if begun.elapsed() > REAPER_PATIENCE {
            spared.clear();
        }
        launcher.kill_exec(main);
        tree::kill_descendants(getpid(), &spared);
        wait_for(
            &mut [PollFd::new(signals, PollFlags::IN)],
            Some(Instant::now() + KILL_INTERVAL),
        );
        signals.clear();
    }
}

/// Waits for an event or the deadline. An interruption is as good as an event: the caller looks at everything.
fn wait_for(fds: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
    let _ = poll(fds, timeout.as_ref());
}
