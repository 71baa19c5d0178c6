//! Seeing a finished connection off: it is read until the server closes it, so that `TIME_WAIT` is the server's.
//!
//! A probe has its outcome before this starts and never waits for it. Every bound leads to a plain close, at worst
//! a local port in `TIME_WAIT`. There is no `SO_LINGER`: with it `close()` blocks the thread.

use std::io::ErrorKind;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Connections kept open for their servers to close. Servers that honour `Connection: close` need one for some
/// microseconds; the bound keeps those that do not from using up the descriptors.
const MAX_LINGERING: usize = 512;

/// Bytes thrown away per connection. Enough for any health page; an endless body is cut off here.
const MAX_DISCARDED_BYTES: usize = 256 * 1024;

/// Bytes read by one call.
const READ_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Lingering {
    places: Arc<Semaphore>,
}

impl Lingering {
    pub(crate) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_LINGERING)),
        }
    }

    /// Takes over `stream` until the server closes it, at the longest until `deadline`.
    pub(crate) fn see_off(&self, stream: TcpStream, deadline: Instant) {
        let mut budget = MAX_DISCARDED_BYTES;
        if discard_available(&stream, &mut budget) == Peer::Done {
            return;
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return;
        };
        tokio::spawn(async move {
            // Whether the server closed or the time is over makes no difference any more.
            let _ = timeout_at(deadline, discard(&stream, budget)).await;
            drop(place);
        });
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Peer {
    Open,
    /// Closed, broken, or past what we are willing to read.
    Done,
}

async fn discard(stream: &TcpStream, mut budget: usize) {
    while stream.readable().await.is_ok() {
        if discard_available(stream, &mut budget) == Peer::Done {
            return;
        }
    }
}

/// Reads what is there. Not async, so that the buffer is on the stack and a lingering connection costs no memory.
fn discard_available(stream: &TcpStream, budget: &mut usize) -> Peer {
    let mut buffer = [0; READ_BYTES];
    while *budget > 0 {
        match stream.try_read(&mut buffer) {
            Ok(0) => return Peer::Done,
            Ok(read) => *budget = budget.saturating_sub(read),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Peer::Open,
            Err(_) => return Peer::Done,
        }
    }
    Peer::Done
}
