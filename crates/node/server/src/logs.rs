//! What a container wrote, as a stream of bytes that ends with the log, or with the container when it is followed.
//!
//! Nothing is kept in memory but one chunk, however much of a log is asked for; reading happens away from the tasks
//! that serve others.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use pulselet_agent::{LogFile, LogPlace, NodeHandle};
use pulselet_runtime::log::{LogEntry, LogStream};
use pulselet_vocabulary::PodName;
use thiserror::Error;

use crate::body::Body;
use crate::query::Query;

/// How often a log is looked at that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Looks between two questions whether the container still runs.
const LOOKS_PER_QUESTION: u32 = 5;
/// Bytes sent at a time, one entry more or less.
const CHUNK: usize = 64 * 1024;

/// What a client wants to see.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogOptions {
    pub(crate) follow: bool,
    pub(crate) previous: bool,
    timestamps: bool,
    since: Option<Timestamp>,
    /// Lines at the end.
    tail: Option<u64>,
    /// Bytes that may be sent.
    limit: Option<u64>,
    /// None: both.
    stream: Option<LogStream>,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum OptionError {
    #[error("{name}: Invalid value: {value:?}: {rule}")]
    Invalid {
        name: &'static str,
        value: String,
        rule: &'static str,
    },
    #[error("at most one of `sinceTime` or `sinceSeconds` may be specified")]
    TwiceSince,
}

impl LogOptions {
    pub(crate) fn parse(query: &Query, now: Timestamp) -> Result<Self, OptionError> {
        let number = |name: &'static str, least: u64, rule: &'static str| {
            let text = query.text(name);
            text.map(|text| {
                let number = text.parse().ok().filter(|number| *number >= least);
                number.ok_or_else(|| invalid(name, text, rule))
            })
            .transpose()
        };
        let seconds = number("sinceSeconds", 1, "must be greater than 0")?;
        let time = query.text("sinceTime").map(|text| {
            text.parse()
                .map_err(|_| invalid("sinceTime", text, "must be a time as RFC 3339 has it"))
        });
        let since = match (seconds, time.transpose()?) {
            (Some(_), Some(_)) => return Err(OptionError::TwiceSince),
            (Some(seconds), None) => Some(
                // A time before all times is before every entry.
                now.checked_sub(Duration::from_secs(seconds))
                    .unwrap_or(Timestamp::MIN),
            ),
            (None, time) => time,
        };
        Ok(Self {
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            timestamps: query.flag("timestamps"),
            since,
            tail: number("tailLines", 0, "must be greater than or equal to 0")?,
            limit: number("limitBytes", 1, "must be greater than 0")?,
            stream: match query.text("stream") {
                None | Some("All") => None,
                Some("Stdout") => Some(LogStream::Stdout),
                Some("Stderr") => Some(LogStream::Stderr),
                Some(other) => return Err(invalid("stream", other, "must be All, Stdout or Stderr")),
            },
        })
    }

    fn wants(&self, entry: &LogEntry<'_>) -> bool {
        self.stream.is_none_or(|stream| stream == entry.stream)
    }
}

fn invalid(name: &'static str, value: &str, rule: &'static str) -> OptionError {
    OptionError::Invalid {
        name,
        value: value.to_owned(),
        rule,
    }
}

/// Whose log it is.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) node: NodeHandle,
    pub(crate) pod: PodName,
    pub(crate) place: LogPlace,
}

impl Source {
    /// Whether the life that is followed is over: it ended, another has begun, or the pod is gone.
    async fn has_ended(&self) -> bool {
        let container = Some(self.place.container.clone());
        let now = self.node.log(&self.pod, container, false).await;
        !matches!(now, Ok(Ok(now)) if now.running && now.attempt == self.place.attempt)
    }
}

/// Opens a log and returns what of it is wanted.
pub(crate) async fn read(source: Source, options: LogOptions) -> io::Result<Body> {
    let path = source.place.path.clone();
    let wanted = options.clone();
    let reader = away(move || Reader::open(&path, wanted)).await?;
    let following = Following {
        ended: !(options.follow && source.place.running),
        source,
        reader: Some(reader),
        looks: 0,
    };
    let chunks = stream::try_unfold(following, |mut following| async move {
        let chunk = following.next().await?;
        Ok(chunk.map(|chunk| (Frame::data(chunk), following)))
    });
    Ok(StreamBody::new(chunks).boxed_unsync())
}

/// Runs what may wait for a disk where nobody else has to wait for it.
async fn away<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

struct Following {
    source: Source,
    /// Away while it reads.
    reader: Option<Reader>,
    /// Nothing more will be written.
    ended: bool,
    looks: u32,
}

impl Following {
    /// The next chunk; none when all is said.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let Some(mut reader) = self.reader.take() else {
                return Ok(None);
            };
            let (reader, chunk) = away(move || {
                let chunk = reader.fill()?;
                Ok((reader, chunk))
            })
            .await?;
            let full = reader.full();
            self.reader = Some(reader);
            if !chunk.is_empty() {
                return Ok(Some(chunk.into()));
            }
            if self.ended || full {
                return Ok(None);
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
            self.looks += 1;
            // Asked before looking: what was written before the end is still sent.
            self.ended = self.looks.is_multiple_of(LOOKS_PER_QUESTION) && self.source.has_ended().await;
        }
    }
}

/// Turns entries into the lines they were.
#[derive(Debug)]
struct Reader {
    log: LogFile,
    options: LogOptions,
    /// Lines before the ones that are wanted.
    skip: u64,
    /// The next entry of a stream begins a line: of stdout, of stderr.
    begins: [bool; 2],
    sent: u64,
}

impl Reader {
    fn open(path: &std::path::Path, options: LogOptions) -> io::Result<Self> {
        let log = LogFile::open(path)?;
        let skip = match options.tail {
            Some(tail) => {
                let lines = log.count(|entry| !entry.partial && options.wants(entry))?;
                lines.saturating_sub(tail)
            }
            None => 0,
        };
        Ok(Self {
            log,
            options,
            skip,
            begins: [true; 2],
            sent: 0,
        })
    }

    /// As much as may be sent has been.
    fn full(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.sent >= limit)
    }

    /// The next bytes; none when there is nothing more for now.
    fn fill(&mut self) -> io::Result<Vec<u8>> {
        let mut chunk = Vec::new();
        if self.full() {
            return Ok(chunk);
        }
        let Self {
            log,
            options,
            skip,
            begins,
            sent,
        } = self;
        log.read(&mut |entry| {
            if !options.wants(entry) {
                return ControlFlow::Continue(());
            }
            if *skip > 0 {
                *skip -= u64::from(!entry.partial);
                return ControlFlow::Continue(());
            }
            let begins = &mut begins[entry.stream as usize];
            let first = std::mem::replace(begins, !entry.partial);
            if options.since.is_some_and(|since| entry.at < since) {
                return ControlFlow::Continue(());
            }
            let stamped = options.timestamps && first;
            put(&mut chunk, entry, stamped);
            let left = options.limit.map_or(u64::MAX, |limit| limit - *sent);
            if chunk.len() as u64 >= left || chunk.len() >= CHUNK {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if let Some(limit) = options.limit {
            let left = usize::try_from(limit - *sent).unwrap_or(usize::MAX);
            chunk.truncate(left);
        }
        *sent += chunk.len() as u64;
        Ok(chunk)
    }
}

fn put(chunk: &mut Vec<u8>, entry: &LogEntry<'_>, stamped: bool) {
    if stamped {
        chunk.extend_from_slice(format!("{:.9} ", entry.at).as_bytes());
    }
    chunk.extend_from_slice(entry.text);
    if !entry.partial {
        chunk.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-02T03:04:01.000000000Z stdout F one
2026-01-02T03:04:02.000000000Z stderr P tw
2026-01-02T03:04:03.000000000Z stderr F o
2026-01-02T03:04:04.000000000Z stdout F three
";

    fn shown(query: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, LOG).unwrap();
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let options = LogOptions::parse(&Query::parse(query), now).unwrap();
        let mut reader = Reader::open(&path, options).unwrap();
        let shown = reader.fill().unwrap();
        assert!(reader.fill().unwrap().is_empty());
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn options_choose_what_is_shown() {
        for (query, expected) in [
            ("", "one\ntwo\nthree\n"),
            ("tailLines=2", "two\nthree\n"),
            ("tailLines=0", ""),
            ("tailLines=1000000000", "one\ntwo\nthree\n"),
            ("sinceSeconds=2", "o\nthree\n"),
            ("sinceTime=2026-01-02T03:04:04Z", "three\n"),
            ("sinceSeconds=18446744073709551615", "one\ntwo\nthree\n"),
            ("limitBytes=6", "one\ntw"),
            ("stream=Stderr", "two\n"),
            ("stream=Stdout&tailLines=1", "three\n"),
            (
                "timestamps=true&tailLines=2",
                "2026-01-02T03:04:02.000000000Z two\n2026-01-02T03:04:04.000000000Z three\n",
            ),
        ] {
            assert_eq!(shown(query), expected, "{query}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for query in [
            "tailLines=-1",
            "tailLines=x",
            "limitBytes=0",
            "sinceSeconds=0",
            "sinceTime=yesterday",
            "sinceTime=2026-01-02T03:04:04Z&sinceSeconds=1",
            "stream=both",
        ] {
            assert!(
                LogOptions::parse(&Query::parse(query), Timestamp::UNIX_EPOCH).is_err(),
                "{query}"
            );
        }
    }

    #[test]
    fn a_long_log_comes_in_chunks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let line = format!("2026-01-02T03:04:01.000000000Z stdout F {}\n", "x".repeat(10_000));
        std::fs::write(&path, line.repeat(30)).unwrap();
        let options = LogOptions::parse(&Query::default(), Timestamp::UNIX_EPOCH).unwrap();
        let mut reader = Reader::open(&path, options).unwrap();
        let mut sent = 0;
        loop {
            let chunk = reader.fill().unwrap();
            assert!(chunk.len() <= CHUNK + 16 * 1024);
            sent += chunk.len();
            if chunk.is_empty() {
                break;
            }
        }
        assert_eq!(sent, 30 * 10_001);
    }
}
