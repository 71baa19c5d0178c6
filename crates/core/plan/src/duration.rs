//! Durations as people write them: `250ms`, `1.5s`, `5m`, `1h30m`.
//!
//! The result is exact to the microsecond; anything finer, negative or without a unit is refused.

use pulselet_engine::time::Span;

/// The longest duration that can be named, so that sums of a few of them cannot leave the clock's range.
const MAX_HOURS: u64 = 24 * 366 * 10;
const MICROS_PER_HOUR: u64 = 3_600_000_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("a duration is empty; write it as 500ms, 1.5s, 5m or 1h")]
    Empty,
    #[error("duration {text:?} is negative")]
    Negative { text: String },
    #[error("duration {text:?} has no unit; use ms, s, m or h")]
    MissingUnit { text: String },
    #[error("duration {text:?} has an unknown unit {unit:?}; use ms, s, m or h")]
    UnknownUnit { text: String, unit: String },
    #[error("duration {text:?} has no number before its unit")]
    MissingNumber { text: String },
    #[error("duration {text:?} is finer than a microsecond")]
    TooFine { text: String },
    #[error("duration {text:?} is longer than ten years")]
    TooLong { text: String },
}

/// Parses one or more numbers with units, as `90s`, `1.5s` or `1m30s`. A bare `0` needs no unit.
pub fn parse_duration(text: &str) -> Result<Span, DurationError> {
    let owned = || text.to_owned();
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    if rest == "0" {
        return Ok(Span::ZERO);
    }
    if rest.starts_with('-') {
        return Err(DurationError::Negative { text: owned() });
    }
    let mut micros: u64 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        if number.is_empty() {
            return Err(DurationError::MissingNumber { text: owned() });
        }
        let scale = match unit {
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => MICROS_PER_HOUR,
            "" => return Err(DurationError::MissingUnit { text: owned() }),
            _ => {
                return Err(DurationError::UnknownUnit {
                    text: owned(),
                    unit: unit.to_owned(),
                });
            }
        };
        micros = scaled(number, scale, text)?
            .checked_add(micros)
            .filter(|micros| *micros <= MAX_HOURS * MICROS_PER_HOUR)
            .ok_or_else(|| DurationError::TooLong { text: owned() })?;
        rest = tail;
    }
    Ok(Span::from_micros(micros))
}

/// A decimal number times a whole scale, without a detour over floating point.
fn scaled(number: &str, scale: u64, text: &str) -> Result<u64, DurationError> {
    let too_long = || DurationError::TooLong {
        text: text.to_owned(),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let no_number = || DurationError::MissingNumber {
        text: text.to_owned(),
    };
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(no_number());
    }
    let mut micros = match whole {
        "" => 0,
        digits => digits
            .parse::<u64>()
            .map_err(|_| too_long())?
            .checked_mul(scale)
            .ok_or_else(too_long)?,
    };
    let mut unit = scale;
    for digit in fraction.trim_end_matches('0').bytes() {
        if !unit.is_multiple_of(10) {
            return Err(DurationError::TooFine {
                text: text.to_owned(),
            });
        }
        unit /= 10;
        micros = micros
            .checked_add(u64::from(digit - b'0') * unit)
            .ok_or_else(too_long)?;
    }
    Ok(micros)
}

/// A duration in the same notation, as short as it can be.
pub fn format_duration(span: Span) -> String {
    let micros = span.as_micros();
    if micros == 0 {
        return "0s".to_owned();
    }
    if micros.is_multiple_of(MICROS_PER_HOUR) {
        return format!("{}h", micros / MICROS_PER_HOUR);
    }
    if micros < 1_000_000 {
        return decimal(micros, 1_000, "ms");
    }
    decimal(micros, 1_000_000, "s")
}

fn decimal(micros: u64, scale: u64, unit: &str) -> String {
    let (whole, rest) = (micros / scale, micros % scale);
    if rest == 0 {
        return format!("{whole}{unit}");
    }
    let width = scale.ilog10() as usize;
    format!(
        "{whole}.{}{unit}",
        format!("{rest:0width$}").trim_end_matches('0')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_exactly() {
        let cases = [
            ("0", 0),
            ("0s", 0),
            ("20ms", 20_000),
            ("0.5ms", 500),
            ("42s", 42_000_000),
            ("1.5s", 1_500_000),
            (".25s", 250_000),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
            ("1h30m", 5_400_000_000),
            ("1.000001s", 1_000_001),
        ];
        for (text, micros) in cases {
            assert_eq!(parse_duration(text), Ok(Span::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "-1s",
            "5",
            "5x",
            "s",
            "1..5s",
            ".s",
            "1s2",
            "99999999999999999999s",
            "90000h1",
            "0.0001ms",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(matches!(
            parse_duration("-1s"),
            Err(DurationError::Negative { .. })
        ));
        assert!(matches!(
            parse_duration("88000h"),
            Err(DurationError::TooLong { .. })
        ));
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for micros in [
            0,
            1,
            999,
            1_000,
            1_500,
            999_999,
            1_000_000,
            61_250_000,
            3_600_000_000,
            5_400_000_001,
        ] {
            let span = Span::from_micros(micros);
            assert_eq!(parse_duration(&format_duration(span)), Ok(span));
        }
    }
}
