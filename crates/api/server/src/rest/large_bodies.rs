//! Requests with large bodies: decoding and checking them takes so long that the threads which serve all connections must not
//! do it.
//!
//! They run on threads of their own, a few at a time, and wait for their turn without holding a thread. A small body, which
//! nearly all requests have, is handled where it was read.

use std::future::Future;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Bytes from which a body is large. One of this size is decoded and checked in about a millisecond.
const LARGE_BODY: usize = 64 * 1024;

/// The threads for large bodies.
#[derive(Debug)]
pub(super) struct LargeBodies {
    turns: Arc<Semaphore>,
}

impl LargeBodies {
    /// Leaves half of the processors to everything else.
    pub(super) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self {
            turns: Arc::new(Semaphore::new((processors / 2).max(1))),
        }
    }

    /// Runs the work of a request whose body has this many bytes.
    pub(super) async fn run<F>(&self, bytes: usize, work: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        if bytes < LARGE_BODY {
            return work.await;
        }
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.expect("the semaphore is never closed");
        let runtime = Handle::current();
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            runtime.block_on(work)
        });
        match working.await {
            Ok(output) => output,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_large_bodies_leave_their_thread() {
        let bodies = LargeBodies::new();
        let here = thread::current().id();
        assert_eq!(
            bodies.run(LARGE_BODY - 1, async { thread::current().id() }).await,
            here
        );
        assert_ne!(
            bodies.run(LARGE_BODY, async { thread::current().id() }).await,
            here
        );
    }

    #[tokio::test]
    async fn a_panic_of_the_work_is_passed_on() {
        let bodies = LargeBodies::new();
        let ended =
            tokio::spawn(async move { bodies.run(LARGE_BODY, async { panic!("of the work") }).await });
        assert!(ended.await.unwrap_err().is_panic());
    }
}
