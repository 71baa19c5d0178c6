//! `pulselet exec`: a command in a container of the local agent, at this terminal.
//!
//! The exit code is the command's. Without `-t`, Ctrl-C ends the command and this process; with it, the command's own
//! terminal gets the key. A terminal that was made raw is always put back.

use std::io::{IsTerminal as _, Read as _, Write as _};

use pulselet_agent::control::{ExecFrame, ExecInput, ExecSession};
use pulselet_runtime::{ExecOptions, TerminalSize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::agent;
use crate::cli::ExecArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// Bytes of input sent at a time.
const INPUT_CHUNK: usize = 16 * 1024;
/// Pieces of input that wait for the agent; the reader of stdin waits with them.
const INPUT_BACKLOG: usize = 4;

pub(crate) fn run(args: &ExecArgs) -> Result<Exit, Failure> {
    let executor = agent::small_executor()?;
    let ended = executor.block_on(exec(args));
    // What is read of stdin after the end is nobody's.
    executor.shutdown_background();
    ended
}

async fn exec(args: &ExecArgs) -> Result<Exit, Failure> {
    let at_terminal = std::io::stdin().is_terminal();
    if args.tty && !at_terminal {
        output::note("-t is of no use here: stdin is no terminal");
    }
    let tty = args.tty && at_terminal;
    let options = ExecOptions {
        command: args.command.clone(),
        tty,
        stdin: args.stdin,
        stdout: true,
        stderr: !tty,
        term: std::env::var("TERM").ok().filter(|term| tty && !term.is_empty()),
    };
    let client = args.data.client()?;
    // Before the command begins: who is killed by a signal leaves it running.
    let mut interrupts = Interrupts::listen()?;
    let session = tokio::select! {
        session = client.exec(&args.pod, args.container.as_deref(), &options) => session?,
        () = interrupts.next() => return Ok(Exit::Interrupted),
    };
    let raw = tty.then(RawTerminal::enter).transpose()?;
    let conversation = converse(session, args.stdin, tty, interrupts).await;
    drop(raw);
    conversation
}

async fn converse(
    mut session: ExecSession,
    stdin: bool,
    tty: bool,
    mut interrupts: Interrupts,
) -> Result<Exit, Failure> {
    let input = session.input();
    let feeding = async {
        tokio::join!(pass_input(stdin, &input), pass_sizes(tty, &input));
        std::future::pending::<Exit>().await
    };
    let showing = async {
        loop {
            match session.next().await? {
                ExecFrame::Stdout(bytes) => show(&mut std::io::stdout(), &bytes)?,
                ExecFrame::Stderr(bytes) => show(&mut std::io::stderr(), &bytes)?,
                ExecFrame::Exited(code) => return Ok(exit_of(code)),
                ExecFrame::Failed(why) => {
                    return Err(Failure::no(format_args!("the command was lost: {why}")));
                }
                // The agent sends none of these.
                ExecFrame::Stdin(_) | ExecFrame::StdinEnded | ExecFrame::Resized(_) => {}
            }
        }
    };
    tokio::select! {
        exit = feeding => Ok(exit),
        shown = showing => shown,
        // The agent ends the command with the connection.
        () = interrupts.next() => Ok(Exit::Interrupted),
    }
}

/// Passes stdin on to its end. Reading it cannot be given up, so a thread of its own does that.
async fn pass_input(wanted: bool, input: &ExecInput) {
    if !wanted {
        return;
    }
    let (sender, mut pieces) = mpsc::channel(INPUT_BACKLOG);
    std::thread::spawn(move || {
        let mut buffer = vec![0; INPUT_CHUNK];
        let mut stdin = std::io::stdin().lock();
        while let Ok(count @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    while let Some(piece) = pieces.recv().await {
        if input.send(ExecFrame::Stdin(piece.into())).await.is_err() {
            return;
        }
    }
    // An agent that is gone is noticed by who waits for output.
    let _ = input.send(ExecFrame::StdinEnded).await;
}

/// Passes the size of this terminal on, now and whenever it changes.
async fn pass_sizes(wanted: bool, input: &ExecInput) {
    let Some(mut changed) = wanted.then(|| signal(SignalKind::window_change()).ok()).flatten() else {
        return;
    };
    loop {
        if let Ok((columns, rows)) = crossterm::terminal::size() {
            let size = TerminalSize { columns, rows };
            if input.send(ExecFrame::Resized(size)).await.is_err() {
                return;
            }
        }
        changed.recv().await;
    }
}

/// The command's bytes as they are: colours, and whatever else it draws with, are meant for this terminal.
fn show(out: &mut impl std::io::Write, bytes: &[u8]) -> Result<(), Failure> {
    output::written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// A code that no process can have means that nobody saw its end.
fn exit_of(code: i32) -> Exit {
    u8::try_from(code).map_or(Exit::No, Exit::Workload)
}

/// A terminal that passes every key on, until this is dropped.
struct RawTerminal;

impl RawTerminal {
    fn enter() -> Result<Self, Failure> {
        let raw = crossterm::terminal::enable_raw_mode();
        raw.map_err(|error| Failure::environment(format_args!("cannot use this terminal: {error}")))?;
        Ok(Self)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _ = crossterm::terminal::disable_raw_mode();
        let _ = std::io::stdout().flush();
    }
}
