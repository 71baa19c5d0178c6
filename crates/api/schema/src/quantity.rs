//! Resource quantities: parsing, comparing and the one canonical spelling.
//!
//! A quantity is a decimal number with a suffix. It is held as an integer number of nano-units, which covers
//! everything upstream can represent; finer digits are rounded up and larger values capped, as there.

use std::cmp::Ordering;
use std::fmt;

/// Nano-units in one unit.
const UNIT: i128 = 1_000_000_000;
/// The largest value upstream keeps exactly: 2^63 - 1 units.
const MAX: i128 = (i64::MAX as i128) * UNIT;
/// Longer texts cannot be reasonable numbers and are refused before any arithmetic.
const MAX_TEXT_BYTES: usize = 128;

const BINARY_SUFFIXES: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];
const DECIMAL_SUFFIXES: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// A parsed quantity. Equality and order are those of the amounts, whatever the spelling was.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    nanos: i128,
    format: Format,
}

/// The family of suffixes a quantity was written with, and is written with again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Binary,
    Decimal,
    Exponent,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity; write a number with an optional suffix, such as 500m, 2 or 128Mi")]
pub struct ParseAmountError {
    text: String,
}

impl Amount {
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::Decimal,
    };

    pub fn parse(text: &str) -> Result<Self, ParseAmountError> {
        parse_parts(text.trim()).ok_or_else(|| ParseAmountError {
            text: text.chars().take(MAX_TEXT_BYTES).collect(),
        })
    }

    /// The amount in nano-units.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether the amount is a whole number of units.
    pub const fn is_whole(self) -> bool {
        self.nanos % UNIT == 0
    }

    /// Rounded up to thousandths, the finest grain Kubernetes schedules with.
    #[must_use]
    pub const fn rounded_to_milli(self) -> Self {
        const MILLI: i128 = UNIT / 1000;
        let whole = self.nanos.div_euclid(MILLI);
        let up = if self.nanos.rem_euclid(MILLI) == 0 {
            whole
        } else {
            whole + 1
        };
        Self {
            nanos: up * MILLI,
            format: self.format,
        }
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

fn parse_parts(text: &str) -> Option<Amount> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES {
        return None;
    }
    let (negative, rest) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let scale = Scale::parse(suffix)?;
    let nanos = scale.apply(whole, fraction);
    Some(Amount {
        nanos: if negative { -nanos } else { nanos },
        format: scale.format(),
    })
}

enum Scale {
    /// Times two to the power of this.
    Binary(u32),
    /// Times ten to the power of this.
    Decimal(i32, Format),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        if let Some((_, power)) = BINARY_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
            return Some(Self::Binary(*power));
        }
        if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
            return Some(Self::Decimal(*power, Format::Decimal));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        // i16 is far beyond any exponent that changes the outcome and cannot overflow below.
        let power: i16 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
        Some(Self::Decimal(i32::from(power), Format::Exponent))
    }

    const fn format(&self) -> Format {
        match self {
            Self::Binary(_) => Format::Binary,
            Self::Decimal(_, format) => *format,
        }
    }

    /// The nano-units of `whole.fraction` under this scale, rounded up and capped.
    fn apply(&self, whole: &str, fraction: &str) -> i128 {
        match self {
            Self::Binary(power) => {
                // 18 fractional digits are exact enough: what is cut off rounds up to one more nano-unit.
                let scaled = decimal(whole, fraction, 18);
                let Some(product) = scaled.checked_mul(1_i128 << power.min(&40)) else {
                    return MAX;
                };
                let product = if *power > 40 {
                    product.checked_mul(1 << (power - 40)).unwrap_or(i128::MAX)
                } else {
                    product
                };
                ceil_div(product, 1_000_000_000).min(MAX)
            }
            Self::Decimal(power, _) => decimal(whole, fraction, 9 + power).min(MAX),
        }
    }
}

fn ceil_div(value: i128, by: i128) -> i128 {
    value / by + i128::from(value % by != 0)
}

/// `whole.fraction` times ten to the power of `shift`, rounded up and saturating.
fn decimal(whole: &str, fraction: &str, shift: i32) -> i128 {
    let mut value: i128 = 0;
    let mut remainder = false;
    let keep = i32::try_from(whole.len())
        .unwrap_or(i32::MAX)
        .saturating_add(shift);
    let digits = whole.bytes().chain(fraction.bytes());
    let mut taken: i32 = 0;
    for digit in digits {
        if taken < keep {
            value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
            taken += 1;
        } else {
            remainder |= digit != b'0';
        }
    }
    while taken < keep && value != 0 && value < i128::MAX / 10 {
        value *= 10;
        taken += 1;
    }
    if taken < keep && value != 0 {
        return i128::MAX;
    }
    value.saturating_add(i128::from(remainder))
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let binary = self.format == Format::Binary && self.is_whole() && self.nanos.abs() >= 1024 * UNIT;
        if binary {
            let mut value = self.nanos / UNIT;
            let mut suffix = "";
            for (name, _) in BINARY_SUFFIXES {
                if value % 1024 != 0 {
                    break;
                }
                value /= 1024;
                suffix = name;
            }
            return write!(f, "{value}{suffix}");
        }
        let mut value = self.nanos;
        let mut index = 0;
        while index + 1 < DECIMAL_SUFFIXES.len() && value % 1000 == 0 {
            value /= 1000;
            index += 1;
        }
        match (self.format, DECIMAL_SUFFIXES[index]) {
            (Format::Exponent, (_, power)) if power != 0 => write!(f, "{value}e{power}"),
            (_, (suffix, _)) => write!(f, "{value}{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Amount::parse(text).unwrap().to_string()
    }

    #[test]
    fn the_canonical_form_has_no_fraction_and_the_largest_suffix() {
        for (text, expected) in [
            ("0", "0"),
            ("0Mi", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("128974848", "128974848"),
            ("100M", "100M"),
            ("1e3", "1e3"),
            ("12E", "9223372036854775807"),
            ("0.1m", "100u"),
            ("-1500m", "-1500m"),
            ("1.0000000001", "1000000001n"),
            ("0.5Ki", "512"),
            ("500Ki", "500Ki"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn amounts_compare_across_suffixes() {
        assert!(Amount::parse("1Gi").unwrap() > Amount::parse("1G").unwrap());
        assert_eq!(Amount::parse("1000m"), Amount::parse("1"));
        assert!(Amount::parse("-1").unwrap().is_negative());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "abc",
            "1.2.3",
            "1Kb",
            "1 Gi",
            "--1",
            ".",
            "1e",
            "1e99999999999",
            &"9".repeat(200),
        ] {
            assert!(Amount::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn canonical_forms_are_stable() {
        for text in ["3", "250m", "64Mi", "1e6", "7k", "1n"] {
            assert_eq!(canonical(&canonical(text)), canonical(text));
        }
    }

    #[test]
    fn extremes_saturate() {
        for text in [
            "1e30000",
            "99999999999999999999999999999999999999999999Ei",
            "1e-30000",
        ] {
            assert!(Amount::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn rounding_goes_up_to_milli() {
        assert_eq!(Amount::parse("1u").unwrap().rounded_to_milli().to_string(), "1m");
        assert_eq!(Amount::parse("2").unwrap().rounded_to_milli().to_string(), "2");
    }
}
