//! The small words of Go's standard library, which users and their alerts know from upstream's events.

use std::io;
use std::time::Duration;

/// An operating system error as Go words it: `connection refused` instead of `Connection refused (os error 111)`.
pub(crate) fn os_error(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(_) => text.split(" (os error").next().unwrap_or(&text).to_lowercase(),
        None => text,
    }
}

/// A duration as Go prints it: `500ms`, `1.5s`, `1m0s`.
pub(crate) fn duration(value: Duration) -> String {
    let millis = value.as_millis();
    if millis < 1000 {
        return if millis == 0 {
            "0s".to_owned()
        } else {
            format!("{millis}ms")
        };
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let seconds = match (millis / 1000 % 60, millis % 1000) {
        (whole, 0) => format!("{whole}s"),
        (whole, rest) => format!("{whole}.{}s", format!("{rest:03}").trim_end_matches('0')),
    };
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        _ => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// At most this many characters of a peer's own words are quoted in a text.
const MAX_QUOTED_CHARS: usize = 80;

/// Untrusted bytes, quoted, escaped and cut.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    format!("{:?}", text.chars().take(MAX_QUOTED_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_go() {
        let cases = [
            (0, "0s"),
            (500, "500ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (60_000, "1m0s"),
            (3_661_050, "1h1m1.05s"),
        ];
        for (millis, text) in cases {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn os_errors_lose_their_number_and_capital() {
        assert_eq!(os_error(&io::Error::from_raw_os_error(111)), "connection refused");
        assert_eq!(os_error(&io::Error::from_raw_os_error(113)), "no route to host");
        assert_eq!(os_error(&io::Error::other("As Is")), "As Is");
    }

    #[test]
    fn quotes_are_cut_and_escaped() {
        assert_eq!(quoted(b"a\"\r\n\xff"), "\"a\\\"\\r\\n\u{fffd}\"");
        assert_eq!(quoted(&[b'x'; 500]).len(), MAX_QUOTED_CHARS + 2);
    }
}
