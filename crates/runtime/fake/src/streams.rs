//! Commands and connections with a person at the other end, played by tasks.
//!
//! | command | does |
//! |---|---|
//! | `cat` | returns its input until that ends |
//! | `exit CODE` | says `out` and `err` where they belong, and exits with the code |
//! | `flood` | writes for as long as anybody reads |
//! | `size` | writes the terminal's sizes, as `80x24`, until its input ends |
//!
//! Others cannot be run. An attached container is a `cat`, a port returns what it is sent; port 1 is closed, and port 2
//! says `bye` and ends, while it goes on to listen.

use std::io;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use pulselet_runtime::{
    DuplexStream, Error, ExecOptions, ExecStreams, Operation, Result, TerminalSize, exit_code,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

/// Bytes between the two ends of a stream.
const PIPE: usize = 4 * 1024;
/// Sizes of a terminal that wait.
const SIZES: usize = 4;
/// Nobody listens here.
const CLOSED_PORT: u16 = 1;
/// Here somebody has nothing to say but goodbye.
const PARTING_PORT: u16 = 2;

/// How many are open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Open(Arc<AtomicUsize>);

impl Open {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn one_more(&self) -> Counted {
        self.0.fetch_add(1, Ordering::SeqCst);
        Counted(self.clone())
    }
}

#[derive(Debug)]
struct Counted(Open);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

enum Program {
    Cat,
    Exit(i32),
    Flood,
    Size,
}

impl Program {
    fn parse(command: &[String]) -> Option<Self> {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        Some(match *words.as_slice() {
            ["cat"] => Self::Cat,
            ["exit", code] => Self::Exit(code.parse().ok()?),
            ["flood"] => Self::Flood,
            ["size"] => Self::Size,
            _ => return None,
        })
    }
}

/// The command's ends of its streams; one that nobody asked for leads nowhere.
struct Ends {
    stdin: tokio::io::DuplexStream,
    stdout: tokio::io::DuplexStream,
    stderr: tokio::io::DuplexStream,
    sizes: mpsc::Receiver<TerminalSize>,
}

pub(crate) fn exec(open: &Open, options: &ExecOptions) -> Result<ExecStreams> {
    let program = Program::parse(&options.command).ok_or_else(|| Error::CannotRun {
        message: format!("exec: {:?}: not found", options.command.join(" ")),
    })?;
    let (stdin, their_stdin) = tokio::io::duplex(PIPE);
    let (stdout, their_stdout) = tokio::io::duplex(PIPE);
    let (stderr, their_stderr) = tokio::io::duplex(PIPE);
    let (resize, sizes) = mpsc::channel(SIZES);
    let (mut exit_sender, exit) = oneshot::channel();
    let ends = Ends {
        stdin: their_stdin,
        stdout: their_stdout,
        stderr: their_stderr,
        sizes,
    };
    let counted = open.one_more();
    tokio::spawn(async move {
        let code = tokio::select! {
            played = play(program, ends) => played.unwrap_or(141),
            () = exit_sender.closed() => exit_code::KILLED,
        };
        drop(counted);
        // Whoever left does not want to know.
        let _ = exit_sender.send(Ok(code));
    });
    Ok(ExecStreams {
        stdin: options.stdin.then(|| Box::new(stdin) as _),
        stdout: options.stdout.then(|| Box::new(stdout) as _),
        stderr: (options.stderr && !options.tty).then(|| Box::new(stderr) as _),
        resize: options.tty.then_some(resize),
        exit,
    })
}

async fn play(program: Program, mut ends: Ends) -> io::Result<i32> {
    match program {
        Program::Cat => {
            tokio::io::copy(&mut ends.stdin, &mut ends.stdout).await?;
            Ok(0)
        }
        Program::Exit(code) => {
            // Nobody needs to have asked for them.
            let _ = ends.stdout.write_all(b"out\n").await;
            let _ = ends.stderr.write_all(b"err\n").await;
            Ok(code)
        }
        Program::Flood => loop {
            ends.stdout.write_all(&[0; PIPE]).await?;
        },
        Program::Size => {
            let mut typed = [0; 64];
            loop {
                tokio::select! {
                    Some(TerminalSize { columns, rows }) = ends.sizes.recv() => {
                        ends.stdout.write_all(format!("{columns}x{rows}\n").as_bytes()).await?;
                    }
                    count = ends.stdin.read(&mut typed) => if count? == 0 {
                        return Ok(0);
                    },
                }
            }
        }
    }
}

pub(crate) fn port_forward(open: &Open, port: u16) -> Result<DuplexStream> {
    if port == CLOSED_PORT {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        return Err(Error::failed(Operation::PortForward, refused));
    }
    let (stream, theirs) = tokio::io::duplex(PIPE);
    let counted = open.one_more();
    tokio::spawn(async move {
        let (mut from, mut to) = tokio::io::split(theirs);
        // A connection that breaks has ended.
        if port == PARTING_PORT {
            let _ = to.write_all(b"bye").await;
            let _ = to.shutdown().await;
            let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        } else {
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        }
        drop(counted);
    });
    Ok(Box::new(stream))
}
