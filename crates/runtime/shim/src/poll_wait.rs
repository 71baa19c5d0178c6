//! Waiting for descriptors until a deadline.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};

/// Waits for an event or the deadline. Returns whether the events can be looked at: an interruption, or a moment without
/// memory, is as good as an event, and the caller looks at everything again.
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> bool {
    let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
    poll(fds, timeout.as_ref()).is_ok()
}

/// A little more than the duration, so that what is due then is due when the poll returns.
fn timespec(duration: Duration) -> Timespec {
    let rounded = duration + Duration::from_micros(1);
    Timespec {
        tv_sec: i64::try_from(rounded.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: rounded.subsec_nanos().into(),
    }
}
