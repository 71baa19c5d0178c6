//! Server-sent events: how browsers hear of what changes, and go on after a broken connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream;
use hyper::body::Frame;
use tokio::sync::{mpsc, watch};

use crate::feed::{LineBatch, PageFeed};
use crate::routes::{Answer, streaming};

const EVENT_STREAM: &str = "text/event-stream";
/// How long nothing is said at the longest, so that a connection that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// After how many milliseconds a browser comes again that lost its connection.
const RETRY_MILLIS: u32 = 1_000;

/// One event as it goes over the wire. Data is JSON, which has no newlines.
pub(crate) fn event(name: &str, id: Option<&str>, data: &str) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("event: {name}\n{id}data: {data}\n\n"))
}

/// What one browser has been told.
struct Listener {
    feed: Arc<PageFeed>,
    changes: watch::Receiver<u64>,
    /// The number of the next line; `None` if it begins with all that is kept.
    next_line: Option<u64>,
    told_state: u64,
    is_new: bool,
}

/// Everything from where the browser was, or from the beginning of what is kept.
pub(crate) fn follow(feed: Arc<PageFeed>, last_event_id: Option<&str>) -> Answer {
    let listener = Listener {
        changes: feed.changes(),
        next_line: last_event_id.and_then(|id| feed.position(id)),
        feed,
        told_state: 0,
        is_new: true,
    };
    let events = stream::unfold(listener, |mut listener| async move {
        let bytes = listener.next().await;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), listener))
    });
    streaming(EVENT_STREAM, events)
}

impl Listener {
    async fn next(&mut self) -> Bytes {
        if std::mem::take(&mut self.is_new) {
            return self.greeting();
        }
        loop {
            // Seen before looking: what changes meanwhile is noticed.
            self.changes.borrow_and_update();
            if let Some(bytes) = self.news() {
                return bytes;
            }
            tokio::select! {
                // The feed lives as long as this listener.
                _ = self.changes.changed() => {}
                () = tokio::time::sleep(KEEP_ALIVE) => return Bytes::from_static(b": still here\n\n"),
            }
        }
    }

    /// A browser that cannot go on where it was forgets what it has.
    fn greeting(&mut self) -> Bytes {
        let mut text = format!("retry: {RETRY_MILLIS}\n\n");
        if self.next_line.is_none() {
            text.push_str("event: reset\ndata: {}\n\n");
        }
        Bytes::from(text)
    }

    fn news(&mut self) -> Option<Bytes> {
        if let Some((version, state)) = self.feed.state_after(self.told_state) {
            self.told_state = version;
            return Some(event("state", None, &state));
        }
        let LineBatch { lines, next, id } = self.feed.lines_from(self.next_line.unwrap_or(0))?;
        self.next_line = Some(next);
        Some(event("lines", Some(&id), &format!("[{}]", lines.join(","))))
    }
}

/// Events that somebody else makes, until that one is done.
pub(crate) fn pass_on(events: mpsc::Receiver<Bytes>) -> Answer {
    streaming(EVENT_STREAM, received(events))
}

fn received(events: mpsc::Receiver<Bytes>) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    stream::unfold(events, |mut events| async move {
        let bytes = events.recv().await?;
        Some((Ok(Frame::data(bytes)), events))
    })
}
