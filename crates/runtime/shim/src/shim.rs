//! The shim's loop: one poll, then whatever became possible.
//!
//! The lifecycle is [`Phase`]; it moves forward only. Everything that takes time (a stop's grace, killing what is left,
//! an exit that could not be written yet) is a phase with the instant of its next step.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::unix::net::UnixListener,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use pulselet_runtime::{ContainerExit, ExitCause, Signal, log::LogStream};
use pulselet_sys::{ChildSignals, Fork, Pid, fork, send_signal};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::{WaitOptions, WaitStatus, getpid, wait},
};

use crate::{
    connection::Connection,
    daemon::ShimConfig,
    exec_supervisor::{self, ExecJob},
    exit_status::exit_code_of,
    init_streams::InitStreams,
    launcher::Launcher,
    poll_wait::wait_for,
    process_tree,
    protocol::{Channel, Reply, Request, ShimRefusal, StreamCall},
    record::{self, RecordError, SOCKET_FILE},
};

/// Clients served at once; more wait in the listener's queue. The agent uses one, and one per command.
const MAX_CLIENTS: usize = 64;

/// Commands run at once in one container: three probes and two hooks, with room for people.
const MAX_EXECS: usize = 32;

/// Bytes an attached client may be behind before it is dropped, so that it cannot hold the container's output up.
const MAX_ATTACH_BACKLOG: usize = 512 * 1024;

/// Between two rounds of killing what is left. A killed process is usually gone after a fraction of this.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// How long after the end a supervisor may take to answer its client.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(1);

/// After this the exit is reported although something is left that the kernel cannot kill now (a hung disk). Killing goes
/// on.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries to write the exit to a disk that is full.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// How long a client has to take the last words of a leaving shim.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A longer grace is taken as this: a century is for ever, and fits a clock.
const MAX_GRACE: Duration = Duration::from_hours(100 * 365 * 24);

pub(crate) struct Shim<L> {
    pub(crate) config: ShimConfig,
    pub(crate) launcher: L,
    pub(crate) listener: UnixListener,
    pub(crate) signals: ChildSignals,
    pub(crate) streams: InitStreams,
    pub(crate) init: Pid,
    pub(crate) started_at: Timestamp,
    /// Locked as long as this process lives.
    pub(crate) lock: File,
    pub(crate) phase: Phase,
    pub(crate) clients: Vec<Client>,
    /// Supervisors of commands, our children.
    pub(crate) execs: HashSet<Pid>,
    /// Commands asked for in this turn.
    pub(crate) jobs: Vec<(Connection, ExecJob)>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Running,
    /// The stop signal was sent.
    Stopping {
        deadline: Instant,
    },
    /// SIGKILL was sent to everything; the init process has not been waited for yet.
    Killing {
        after_grace: bool,
        next: Instant,
    },
    Ending(Ending),
}

/// The init process is gone.
#[derive(Debug)]
pub(crate) struct Ending {
    exit: ContainerExit,
    recorded: bool,
    reported: bool,
    since: Instant,
    next: Instant,
}

pub(crate) struct Client {
    connection: Connection,
    role: Role,
}

enum Role {
    Asking,
    Answered,
    Subscriber,
    Attached(StreamCall),
}

/// What a poll was for.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Signals,
    Listener,
    Output(LogStream),
    Input,
    Client(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Again,
    Over,
}

impl<L: Launcher> Shim<L> {
    pub(crate) fn run(mut self) -> ExitCode {
        loop {
            if self.turn() == Turn::Over {
                return self.leave();
            }
            while let Some((mut connection, job)) = self.jobs.pop() {
                let shim = getpid();
                match fork() {
                    Ok(Fork::Parent { child }) => drop(self.execs.insert(child)),
                    Ok(Fork::Child) => {
                        return exec_supervisor::run(shim, self.into_launcher(), connection, job);
                    }
                    Err(error) => connection.send(&Reply::Refused(ShimRefusal::Failed {
                        detail: error.to_string(),
                    })),
                }
            }
        }
    }

    /// In a copy of this process: lets go of everything else, all descriptors among it.
    fn into_launcher(self) -> L {
        self.launcher
    }

    fn turn(&mut self) -> Turn {
        for (slot, events) in self.wait_for_events() {
            match slot {
                Slot::Signals => self.signals.clear(),
                Slot::Listener => self.accept(),
                Slot::Output(stream) => self.pump(stream),
                Slot::Input => self.streams.flush_stdin(),
                Slot::Client(index) => self.serve(index, events),
            }
        }
        self.clients.retain(|client| !client.connection.ended());
        let children_left = self.reap();
        self.advance(Instant::now(), children_left)
    }

    fn wait_for_events(&self) -> Vec<(Slot, PollFlags)> {
        let (slots, mut fds): (Vec<Slot>, Vec<PollFd<'_>>) = self.watched().into_iter().unzip();
        if !wait_for(&mut fds, self.next_step()) {
            return Vec::new();
        }
        let ready = slots
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(slot, fd)| (slot, fd.revents())).collect()
    }

    /// Everything that may wake the loop.
    fn watched(&self) -> Vec<(Slot, PollFd<'_>)> {
        let mut watched = vec![(Slot::Signals, PollFd::new(&self.signals, PollFlags::IN))];
        if self.clients.len() < MAX_CLIENTS {
            watched.push((Slot::Listener, PollFd::new(&self.listener, PollFlags::IN)));
        }
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            if let Some(fd) = self.streams.source(stream) {
                watched.push((Slot::Output(stream), PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            }
        }
        if let Some(fd) = self.streams.sink() {
            watched.push((Slot::Input, PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
        }
        for (index, client) in self.clients.iter().enumerate() {
            let reading = !matches!(client.role, Role::Attached(_)) || self.streams.can_take_typed();
            let interest = client.connection.interest(reading);
            watched.push((Slot::Client(index), PollFd::new(&client.connection, interest)));
        }
        watched
    }

    fn next_step(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Running => None,
            Phase::Stopping { deadline } => Some(*deadline),
            Phase::Killing { next, .. } => Some(*next),
            Phase::Ending(ending) => Some(ending.next),
        }
    }

    fn accept(&mut self) {
        // A client that is gone again is none.
        if let Ok((socket, _)) = self.listener.accept()
            && let Ok(connection) = Connection::new(socket)
        {
            self.clients.push(Client {
                connection,
                role: Role::Asking,
            });
        }
    }

    fn pump(&mut self, stream: LogStream) {
        let clients = &mut self.clients;
        self.streams.pump(stream, |data| tee(clients, stream, data));
    }

    fn serve(&mut self, index: usize, events: PollFlags) {
        let client = &mut self.clients[index];
        if events.contains(PollFlags::OUT) {
            client.connection.flush();
        }
        if !events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        client.connection.fill();
        loop {
            match self.clients[index].connection.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => self.frame(index, &frame),
                Err(error) => {
                    self.refuse(
                        index,
                        ShimRefusal::Malformed {
                            detail: error.to_string(),
                        },
                    );
                    self.clients[index].connection.hang_up();
                    break;
                }
            }
        }
        if self.clients[index].connection.ended() {
            self.detached(index);
        }
    }

    fn frame(&mut self, index: usize, frame: &[u8]) {
        match &self.clients[index].role {
            Role::Asking => match serde_json::from_slice(frame) {
                Ok(request) => self.answer(index, request),
                Err(error) => self.refuse(
                    index,
                    ShimRefusal::Malformed {
                        detail: error.to_string(),
                    },
                ),
            },
            Role::Answered | Role::Subscriber => {}
            Role::Attached(call) => match Channel::split(frame) {
                Some((Channel::Stdin, data)) if call.stdin => self.streams.type_in(data),
                Some((Channel::StdinEnd, _)) if call.stdin && self.config.stdin_once => {
                    self.streams.end_stdin();
                }
                Some((Channel::Resize, data)) => {
                    if let Ok(size) = serde_json::from_slice(data) {
                        self.streams.resize(size);
                    }
                }
                Some((
                    Channel::Stdin | Channel::StdinEnd | Channel::Stdout | Channel::Stderr | Channel::Exit,
                    _,
                ))
                | None => {}
            },
        }
    }

    fn answer(&mut self, index: usize, request: Request) {
        self.clients[index].role = Role::Answered;
        let reply = match request {
            Request::Subscribe => {
                self.clients[index].role = Role::Subscriber;
                Reply::Running {
                    pid: self.init.as_raw_nonzero().get(),
                    started_at: self.started_at,
                }
            }
            Request::Stop { grace_ms } => {
                self.stop(Duration::from_millis(grace_ms).min(MAX_GRACE));
                Reply::Done
            }
            Request::Exec(call) => return self.start_exec(index, ExecJob::Sync(call)),
            Request::ExecStream(call) => return self.start_exec(index, ExecJob::Stream(call)),
            Request::Attach(call) => {
                self.clients[index].role = Role::Attached(call);
                Reply::Streaming
            }
            Request::ReopenLog => match self.streams.reopen_log() {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Refused(ShimRefusal::Failed {
                    detail: error.to_string(),
                }),
            },
        };
        self.clients[index].connection.send(&reply);
    }

    fn start_exec(&mut self, index: usize, job: ExecJob) {
        match self.phase {
            Phase::Killing { .. } | Phase::Ending(_) => return self.refuse(index, ShimRefusal::Ended),
            Phase::Running | Phase::Stopping { .. } => {}
        }
        if self.execs.len() + self.jobs.len() >= MAX_EXECS {
            return self.refuse(index, ShimRefusal::TooManyExecs);
        }
        // The conversation goes on in the copy of this process that will run the command.
        match self.clients[index].connection.hand_over() {
            Ok(connection) => self.jobs.push((connection, job)),
            Err(error) => self.refuse(
                index,
                ShimRefusal::Failed {
                    detail: error.to_string(),
                },
            ),
        }
    }

    fn refuse(&mut self, index: usize, refusal: ShimRefusal) {
        self.clients[index].role = Role::Answered;
        self.clients[index].connection.send(&Reply::Refused(refusal));
    }

    fn detached(&mut self, index: usize) {
        if let Role::Attached(call) = &self.clients[index].role
            && call.stdin
            && self.config.stdin_once
        {
            self.streams.end_stdin();
        }
    }

    fn stop(&mut self, grace: Duration) {
        let now = Instant::now();
        match &mut self.phase {
            Phase::Running => {
                let signal = self.config.stop_signal;
                if grace.is_zero() || signal.is_kill() {
                    self.kill(false);
                } else {
                    // The init process is ours and not waited for, so the number cannot be another's. The grace runs
                    // also when the signal could not be sent.
                    let _ = send_signal(self.init, signal.number());
                    self.phase = Phase::Stopping {
                        deadline: now + grace,
                    };
                }
            }
            Phase::Stopping { deadline } => *deadline = (*deadline).min(now + grace),
            Phase::Killing { .. } | Phase::Ending(_) => {}
        }
    }

    fn kill(&mut self, after_grace: bool) {
        self.kill_round();
        self.phase = Phase::Killing {
            after_grace,
            next: Instant::now() + KILL_INTERVAL,
        };
    }

    /// Supervisors are spared for a while: their commands are killed, and they answer their clients and leave.
    fn kill_round(&mut self) {
        self.launcher.kill_all();
        let patient = match &self.phase {
            Phase::Running | Phase::Stopping { .. } | Phase::Killing { .. } => true,
            Phase::Ending(ending) => ending.since.elapsed() < SUPERVISOR_PATIENCE,
        };
        let nobody = HashSet::new();
        process_tree::kill_descendants(getpid(), if patient { &self.execs } else { &nobody });
    }

    /// Waits for all that have ended. Returns whether children are left.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.init => self.init_ended(status),
                Ok(Some((pid, _))) => drop(self.execs.remove(&pid)),
                Ok(None) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn init_ended(&mut self, status: WaitStatus) {
        // What is left may not be below this process, and then nobody else would notice it.
        self.launcher.kill_all();
        let now = Instant::now();
        let code = exit_code_of(status);
        let after_grace = matches!(
            self.phase,
            Phase::Killing {
                after_grace: true,
                ..
            }
        );
        let by_us = matches!(self.phase, Phase::Killing { .. });
        let killed_by_others = !by_us && status.terminating_signal() == Some(Signal::KILL.number());
        let reason = match code {
            // The kernel counts all processes of the container that it killed, so that alone may mean a child.
            _ if killed_by_others && self.launcher.oom_killed() => ExitCause::OomKilled,
            0 => ExitCause::Completed,
            _ => ExitCause::Error,
        };
        let exit = ContainerExit {
            started_at: Some(self.started_at),
            finished_at: Timestamp::now(),
            code,
            reason,
            message: String::new(),
            killed_after_grace: Some(after_grace && status.signaled()),
        };
        let recorded = write_exit(&exit);
        self.phase = Phase::Ending(Ending {
            exit,
            recorded,
            reported: false,
            since: now,
            next: now,
        });
    }

    /// The step that is due, if any.
    fn advance(&mut self, now: Instant, children_left: bool) -> Turn {
        match &mut self.phase {
            Phase::Running => {}
            Phase::Stopping { deadline } => {
                if now >= *deadline {
                    self.kill(true);
                }
            }
            Phase::Killing { next, .. } => {
                if now >= *next {
                    *next = now + KILL_INTERVAL;
                    self.kill_round();
                }
            }
            Phase::Ending(ending) => {
                if children_left {
                    let due = now >= ending.next;
                    let hung = now.duration_since(ending.since) > KILL_PATIENCE;
                    if due {
                        ending.next = now + KILL_INTERVAL;
                        self.kill_round();
                    }
                    if hung {
                        self.report_exit();
                    }
                } else {
                    self.report_exit();
                    return self.try_to_finish(now);
                }
            }
        }
        Turn::Again
    }

    /// Reports to every client how the container ended, once.
    fn report_exit(&mut self) {
        let Phase::Ending(ending) = &mut self.phase else {
            return;
        };
        if ending.reported {
            return;
        }
        ending.reported = true;
        let clients = &mut self.clients;
        self.streams.drain(|stream, data| tee(clients, stream, data));
        for client in &mut self.clients {
            match client.role {
                Role::Subscriber => client.connection.send(&Reply::Exited(ending.exit.clone())),
                Role::Attached(_) => {
                    client
                        .connection
                        .send_stream(Channel::Exit, ending.exit.code.to_string().as_bytes());
                }
                Role::Asking | Role::Answered => {}
            }
        }
    }

    fn try_to_finish(&mut self, now: Instant) -> Turn {
        let Phase::Ending(ending) = &mut self.phase else {
            return Turn::Again;
        };
        if !ending.recorded && now >= ending.next {
            ending.recorded = write_exit(&ending.exit);
            ending.next = now + RECORD_INTERVAL;
        }
        if ending.recorded { Turn::Over } else { Turn::Again }
    }

    fn leave(mut self) -> ExitCode {
        self.launcher.clean_up();
        // Nobody is to connect from now on; who does finds the record.
        let _ = std::fs::remove_file(SOCKET_FILE);
        for client in self.clients {
            client.connection.finish(LAST_WORDS);
        }
        drop(self.lock);
        ExitCode::SUCCESS
    }
}

/// Copies output to the attached clients that want it.
fn tee(clients: &mut [Client], stream: LogStream, data: &[u8]) {
    for client in clients {
        let Role::Attached(call) = &client.role else {
            continue;
        };
        let (wanted, channel) = match stream {
            LogStream::Stdout => (call.stdout, Channel::Stdout),
            LogStream::Stderr => (call.stderr, Channel::Stderr),
        };
        if wanted && client.connection.backlog() > MAX_ATTACH_BACKLOG {
            client.connection.hang_up();
        } else if wanted {
            client.connection.send_stream(channel, data);
        }
    }
}

/// Whether there is nothing more to write: it is written, or the container's directory was removed under us.
fn write_exit(exit: &ContainerExit) -> bool {
    match record::write_exit(Path::new("."), exit) {
        Ok(()) => true,
        Err(RecordError::Write { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        Err(RecordError::Read { .. } | RecordError::Parse { .. } | RecordError::Newer { .. }) => false,
    }
}
