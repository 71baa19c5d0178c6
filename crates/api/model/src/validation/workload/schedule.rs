//! The grammar of schedules and of the names of time zones.
//!
//! Whether a zone of a good name exists takes a database, which this crate does not read.

use crate::field::go_quote;

/// The five fields of a schedule: lowest and highest value, names of values.
const FIELDS: [(i64, i64, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &MONTHS),
    (0, 6, &DAYS),
];
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const DESCRIPTORS: [&str; 7] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@midnight",
    "@hourly",
];
const UNITS: [&str; 8] = ["ns", "us", "\u{b5}s", "\u{3bc}s", "ms", "s", "m", "h"];
/// The longest part of a zone's name, in bytes.
const MAX_ZONE_PART: usize = 14;

/// Checks a schedule. The error is upstream's.
pub(super) fn parse(text: &str) -> Result<(), String> {
    let mut spec = text;
    if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
        let Some((zone, rest)) = text.split_once(' ') else {
            return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
        };
        let zone = zone.split_once('=').map_or(zone, |(_, zone)| zone);
        if !zone.is_empty() && !is_zone_name(zone) {
            return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
        }
        spec = rest.trim();
    }
    if spec.starts_with('@') {
        return parse_descriptor(spec);
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly {} fields, found {}: [{}]",
            FIELDS.len(),
            fields.len(),
            fields.join(" ")
        ));
    }
    for (field, (low, high, names)) in fields.iter().zip(FIELDS) {
        for range in field.split(',').filter(|range| !range.is_empty()) {
            parse_range(range, low, high, names)?;
        }
    }
    Ok(())
}

fn parse_descriptor(text: &str) -> Result<(), String> {
    if let Some(duration) = text.strip_prefix("@every ") {
        return parse_duration(duration).map_err(|error| format!("failed to parse duration {text}: {error}"));
    }
    if DESCRIPTORS.contains(&text) {
        Ok(())
    } else {
        Err(format!("unrecognized descriptor: {text}"))
    }
}

/// `*`, a number, or a range, each with or without a step.
fn parse_range(text: &str, low: i64, high: i64, names: &[&str]) -> Result<(), String> {
    let range_and_step: Vec<&str> = text.split('/').collect();
    let bounds: Vec<&str> = range_and_step[0].split('-').collect();
    let (start, mut end) = match bounds[..] {
        [] | ["*" | "?", ..] => (low, high),
        [only] => {
            let value = parse_value(only, low, names)?;
            (value, value)
        }
        [first, last] => (parse_value(first, low, names)?, parse_value(last, low, names)?),
        [first, ..] => {
            parse_value(first, low, names)?;
            return Err(format!("too many hyphens: {text}"));
        }
    };
    let step = match range_and_step[..] {
        [_] => 1,
        [_, step] => {
            let step = parse_number(step)?;
            if bounds.len() == 1 {
                end = high;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < low {
        return Err(format!(
            "beginning of range ({start}) below minimum ({low}): {text}"
        ));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {text}"));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {text}"
        ));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn parse_value(text: &str, low: i64, names: &[&str]) -> Result<i64, String> {
    let name = text.to_lowercase();
    match (low..).zip(names).find(|(_, known)| **known == name) {
        Some((value, _)) => Ok(value),
        None => parse_number(text),
    }
}

fn parse_number(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let complaint = |why: &str| {
        format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {}: {why}",
            go_quote(text)
        )
    };
    if !is_number {
        return Err(complaint("invalid syntax"));
    }
    let number: i64 = text.parse().map_err(|_| complaint("value out of range"))?;
    if number < 0 {
        return Err(format!("negative number ({number}) not allowed: {text}"));
    }
    Ok(number)
}

/// A duration as Go writes it, such as `1h30m`.
fn parse_duration(text: &str) -> Result<(), String> {
    let invalid = || format!("time: invalid duration {}", go_quote(text));
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let mut digits = rest.len() - number.len();
        let mut after = number;
        if let Some(fraction) = number.strip_prefix('.') {
            after = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            digits += fraction.len() - after.len();
        }
        if digits == 0 {
            return Err(invalid());
        }
        let unit_end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", go_quote(text)));
        }
        if !UNITS.contains(&unit) {
            return Err(format!(
                "time: unknown unit {} in duration {}",
                go_quote(unit),
                go_quote(text)
            ));
        }
        rest = next;
    }
    Ok(())
}

/// Complaints about the name of a time zone.
pub(super) fn time_zone(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    if !is_zone_name(name) {
        return vec![format!("unknown time zone {name}")];
    }
    if !name.eq_ignore_ascii_case("Local") {
        return Vec::new();
    }
    let mut complaints = vec![
        "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned(),
    ];
    if name != "Local" {
        complaints.push(format!("unknown time zone {name}"));
    }
    complaints
}

fn is_zone_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'+');
    name.split('/').all(|part| {
        !part.is_empty()
            && part.len() <= MAX_ZONE_PART
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && part.bytes().all(allowed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_schedules() {
        for text in [
            "*/5 * * * *",
            "0 0 1 jan SUN",
            "0,30 9-17/2 ? * 1-5",
            "5/15 * * * *",
            "@hourly",
            "@every 1h30m",
            "@every 1.5h",
            "TZ=UTC 0 * * * *",
        ] {
            assert_eq!(parse(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn bad_schedules_are_explained_as_upstream_does() {
        let cases = [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            (
                "x * * * *",
                "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "9-1 * * * *",
                "beginning of range (9) beyond end of range (1): 9-1",
            ),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("*/1/2 * * * *", "too many slashes: */1/2"),
            ("@never", "unrecognized descriptor: @never"),
            (
                "@every 5",
                "failed to parse duration @every 5: time: missing unit in duration \"5\"",
            ),
            (
                "TZ=0",
                "invalid schedule format: runtime error: slice bounds out of range [:-1]",
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(parse(text), Err(wanted.to_owned()), "{text}");
        }
    }
}
