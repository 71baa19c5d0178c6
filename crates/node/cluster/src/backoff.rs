//! How long to wait before asking again.

use std::time::Duration;

/// After the first failure: a server that restarts is back within a second.
const FIRST: Duration = Duration::from_millis(200);
/// The longest wait, so that a node is back soon after its API is.
const LONGEST: Duration = Duration::from_secs(8);

/// Waits that double, up to a limit, each a little different from those of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        // Between three quarters and all of it.
        doubled.min(LONGEST).mul_f64(0.75 + rand::random::<f64>() / 4.0)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_begin_anew() {
        let mut backoff = Backoff::default();
        assert!(backoff.next() <= FIRST);
        for _ in 0..100 {
            assert!(backoff.next() <= LONGEST);
        }
        assert!(backoff.next() > LONGEST / 2);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
