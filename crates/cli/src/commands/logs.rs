//! `pulselet logs`: what containers wrote, from the files their shims keep.
//!
//! The agent says which file is the log and whether another life follows; the files are read here. Without an agent,
//! or for a pod that it no longer has, what the data directory still holds is shown.

mod printer;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use pulselet_agent::control::{ControlClient, ControlClientError};
use pulselet_agent::{KeptLog, Layout, LogFile, LogPlace, kept_logs};

use crate::agent;
use crate::cli::LogsArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output;
use printer::{LinePrinter, Wishes};

/// How often a log is looked at that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Looks between two questions whether the container still runs.
const LOOKS_PER_QUESTION: u32 = 5;
/// Lines that `--tail` may ask for, so that a slip of the finger does not fill the memory.
const MAX_TAIL: usize = 1_000_000;

pub(crate) fn run(args: &LogsArgs) -> Result<Exit, Failure> {
    if args.tail.is_some_and(|tail| tail > MAX_TAIL) {
        return Err(Failure::usage(format_args!("--tail takes {MAX_TAIL} at most")));
    }
    agent::small_executor()?.block_on(print(args))
}

async fn print(args: &LogsArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let mut readers = find(args, &client).await?;
    let mut out = output::stdout();
    for reader in &mut readers {
        if reader.print(&mut out)? || reader.show_tail(&mut out)? {
            return Ok(Exit::Done);
        }
    }
    if !args.follow || args.previous {
        return Ok(Exit::Done);
    }
    let mut interrupts = Interrupts::listen()?;
    let mut looks = 0;
    while !readers.is_empty() {
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            () = interrupts.next() => return Ok(Exit::Interrupted),
        }
        looks += 1;
        let mut going_on = Vec::new();
        for mut reader in readers {
            // Asked before looking: what was written before the end is printed.
            let next = if looks % LOOKS_PER_QUESTION == 0 {
                reader.next(args, &client).await
            } else {
                Next::Same
            };
            if reader.print(&mut out)? {
                return Ok(Exit::Done);
            }
            match next {
                Next::Same => going_on.push(reader),
                Next::Life(place) => going_on.push(reader.move_on(place)?),
                Next::Nothing => {}
            }
        }
        readers = going_on;
    }
    Ok(Exit::Done)
}

/// The logs that were asked for.
async fn find(args: &LogsArgs, client: &ControlClient) -> Result<Vec<Reader>, Failure> {
    let asked = match names(args, client).await {
        Ok(names) => ask_all(args, client, &names).await,
        Err(error) => Err(error),
    };
    let refused = match asked {
        Ok(places) => {
            let places = places.into_iter();
            return places.map(|place| Reader::open(args, place, true)).collect();
        }
        Err(error) => error,
    };
    let may_be_kept = match &refused {
        ControlClientError::Connect { .. } => true,
        ControlClientError::Refused { status, .. } => *status == 404,
        ControlClientError::Send(_)
        | ControlClientError::Timeout
        | ControlClientError::Receive(_)
        | ControlClientError::Decode(_) => false,
    };
    let layout = Layout::new(args.data.resolve()?);
    let kept = if may_be_kept {
        kept_logs(&layout, &args.pod)
    } else {
        Ok(Vec::new())
    };
    let kept = kept.map_err(|error| unreadable(layout.root(), &error))?;
    if kept.is_empty() {
        return Err(refused.into());
    }
    let chosen = choose(args, kept)?.into_iter();
    chosen.map(|place| Reader::open(args, place, false)).collect()
}

/// The containers that were asked for; one without a name is the pod's only one.
async fn names(args: &LogsArgs, client: &ControlClient) -> Result<Vec<Option<String>>, ControlClientError> {
    if !args.all_containers {
        return Ok(vec![args.container.clone()]);
    }
    let pods = client.pods().await?;
    let pod = pods.iter().find(|view| view.pod_name() == args.pod);
    let Some(pod) = pod else {
        // The agent's own words for it.
        return client.log(&args.pod, None, false).await.map(|_| Vec::new());
    };
    let init = pod.status.init_container_statuses.iter();
    let all = init.chain(&pod.status.container_statuses);
    Ok(all.map(|status| Some(status.name.clone())).collect())
}

async fn ask_all(
    args: &LogsArgs,
    client: &ControlClient,
    names: &[Option<String>],
) -> Result<Vec<LogPlace>, ControlClientError> {
    let mut places = Vec::new();
    for name in names {
        match client.log(&args.pod, name.as_deref(), args.previous).await {
            Ok(place) => places.push(place),
            // Of all containers, those that have not run yet have nothing to show.
            Err(ControlClientError::Refused { status: 400, .. }) if args.all_containers => {}
            Err(error) => return Err(error),
        }
    }
    Ok(places)
}

/// Of the logs that were kept, those that were asked for.
fn choose(args: &LogsArgs, kept: Vec<KeptLog>) -> Result<Vec<LogPlace>, Failure> {
    let names: Vec<&str> = kept.iter().map(|log| log.container.as_str()).collect();
    let names = names.join(", ");
    let wanted = |log: &KeptLog| args.container.as_ref().is_none_or(|name| *name == log.container);
    let pod = &args.pod;
    let chosen: Vec<_> = kept.into_iter().filter(|log| wanted(log)).collect();
    if let (true, Some(name)) = (chosen.is_empty(), &args.container) {
        return Err(Failure::no(format_args!(
            "pod {pod} has no log of a container {name:?}; it has {names}"
        )));
    }
    if chosen.len() > 1 && !args.all_containers {
        return Err(Failure::no(format_args!(
            "pod {pod} has several containers, choose one of {names}"
        ))
        .with_hint("-c NAME, or --all-containers"));
    }
    let places = chosen.into_iter().map(|log| {
        let life = log.lives.iter().rev().nth(usize::from(args.previous));
        let Some((attempt, path)) = life.cloned() else {
            let container = &log.container;
            return Err(Failure::no(format_args!(
                "container {container} of pod {pod} has not been restarted, there is no previous log"
            )));
        };
        Ok(LogPlace {
            path,
            container: log.container,
            attempt,
            running: false,
            last: false,
        })
    });
    places.collect()
}

/// What comes after what was read.
enum Next {
    Same,
    /// The log of another life.
    Life(LogPlace),
    Nothing,
}

/// The log of one container as it is printed.
struct Reader {
    container: String,
    attempt: u32,
    path: PathBuf,
    log: LogFile,
    printer: LinePrinter,
    /// The agent is asked what follows. Without one, nobody says that a log is over.
    asks: bool,
}

impl Reader {
    fn open(args: &LogsArgs, place: LogPlace, asks: bool) -> Result<Self, Failure> {
        let log = LogFile::open(&place.path).map_err(|error| unreadable(&place.path, &error))?;
        let now = Timestamp::now();
        let wishes = Wishes {
            timestamps: args.timestamps,
            tail: args.tail,
            since: args.since.and_then(|age| now.checked_sub(age).ok()),
            prefix: args.all_containers.then(|| format!("{} | ", place.container)),
        };
        Ok(Self {
            container: place.container,
            attempt: place.attempt,
            path: place.path,
            log,
            printer: LinePrinter::new(wishes),
            asks,
        })
    }

    /// Prints what there is now. True if nobody reads it any more.
    fn print(&mut self, out: &mut impl io::Write) -> Result<bool, Failure> {
        let printed = self.printer.copy(out, &mut self.log);
        printed_to(printed, &self.path)
    }

    fn show_tail(&mut self, out: &mut impl io::Write) -> Result<bool, Failure> {
        printed_to(self.printer.show_tail(out), &self.path)
    }

    async fn next(&self, args: &LogsArgs, client: &ControlClient) -> Next {
        if !self.asks {
            return Next::Same;
        }
        match client.log(&args.pod, Some(&self.container), false).await {
            Ok(place) if place.attempt != self.attempt => Next::Life(place),
            Ok(place) if place.last => Next::Nothing,
            Ok(_) => Next::Same,
            // The pod is gone, or nobody knows any more.
            Err(_) => Next::Nothing,
        }
    }

    /// Goes on with another life, whose file may not be there yet.
    fn move_on(mut self, place: LogPlace) -> Result<Self, Failure> {
        match LogFile::open(&place.path) {
            Ok(log) => {
                self.log = log;
                self.path = place.path;
                self.attempt = place.attempt;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(&place.path, &error)),
        }
        Ok(self)
    }
}

/// Whether the reader has gone away; other failures are failures.
fn printed_to(result: io::Result<()>, path: &Path) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::environment(format_args!("cannot read {}: {error}", path.display()))
        .with_hint("logs are the agent's: read them as the user it runs as")
}
