//! Points in time, as objects carry them.

use jiff::Timestamp;

/// A time in whole seconds, as RFC 3339.
pub fn timestamp(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}

/// A time in microseconds, as RFC 3339.
pub(crate) fn micro_timestamp(time: Timestamp) -> String {
    format!("{time:.6}")
}
