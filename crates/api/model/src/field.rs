//! Field paths and the errors that point at them, in the words of an upstream API server.
//!
//! A [`Path`] lives on the stack and is rendered only when there is an error to report, so that validating a
//! good Pod allocates nothing. Errors keep the order in which they were found; upstream's clients rely on it.

use std::fmt::{self, Write as _};

use serde::Serialize;

/// Where in an object we are: a linked list that grows with the call stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Segment<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    pub(crate) const fn new(field: &'a str) -> Self {
        Self {
            parent: None,
            segment: Segment::Field(field),
        }
    }

    pub(crate) const fn child(&'a self, field: &'a str) -> Self {
        Self {
            parent: Some(self),
            segment: Segment::Field(field),
        }
    }

    pub(crate) const fn index(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            segment: Segment::Index(index),
        }
    }

    pub(crate) const fn key(&'a self, key: &'a str) -> Self {
        Self {
            parent: Some(self),
            segment: Segment::Key(key),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.segment {
            Segment::Field(field) if self.parent.is_some() => write!(f, ".{field}"),
            Segment::Field(field) => f.write_str(field),
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// What kind of wrong a field is, as upstream's `causes` name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CauseReason {
    #[serde(rename = "FieldValueInvalid")]
    Invalid,
    #[serde(rename = "FieldValueRequired")]
    Required,
    #[serde(rename = "FieldValueNotSupported")]
    NotSupported,
    #[serde(rename = "FieldValueForbidden")]
    Forbidden,
    #[serde(rename = "FieldValueDuplicate")]
    Duplicate,
    #[serde(rename = "FieldValueNotFound")]
    NotFound,
    #[serde(rename = "FieldValueTooLong")]
    TooLong,
    #[serde(rename = "FieldValueTooMany")]
    TooMany,
}

/// One thing that is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FieldError {
    /// The path of the field, such as `spec.containers[0].image`.
    pub field: String,
    pub reason: CauseReason,
    /// The whole message, value included.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Errors kept for one object. Nobody reads more, and each is far larger than the bytes that can cause it.
const MAX_ERRORS: usize = 10_000;

/// Errors in the order they were found, the first [`MAX_ERRORS`] of them.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<FieldError>);

impl Errors {
    pub(crate) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers pass literals and freshly rendered values"
    )]
    pub(crate) fn invalid(&mut self, path: Path<'_>, value: impl BadValue, detail: impl fmt::Display) {
        // Upstream has an error or two that does not say why.
        let detail = detail.to_string();
        let separator = if detail.is_empty() { "" } else { ": " };
        let message = format!("Invalid value: {}{separator}{detail}", Shown(&value));
        self.push(path, CauseReason::Invalid, message);
    }

    /// One Invalid error per message.
    pub(crate) fn invalid_each(&mut self, path: Path<'_>, value: &str, details: Vec<String>) {
        for detail in details {
            self.invalid(path, value, detail);
        }
    }

    pub(crate) fn required(&mut self, path: Path<'_>, detail: &str) {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        self.push(path, CauseReason::Required, message);
    }

    pub(crate) fn not_supported(&mut self, path: Path<'_>, value: &str, supported: &[&str]) {
        let quoted: Vec<String> = supported.iter().map(|value| go_quote(value)).collect();
        let message = format!(
            "Unsupported value: {}: supported values: {}",
            go_quote(value),
            quoted.join(", ")
        );
        self.push(path, CauseReason::NotSupported, message);
    }

    /// As [`Errors::not_supported`], for a value that is not a string.
    pub(crate) fn not_supported_shown(&mut self, path: Path<'_>, value: &RawJson, supported: &[&str]) {
        let quoted: Vec<String> = supported.iter().map(|value| go_quote(value)).collect();
        let message = format!(
            "Unsupported value: {}: supported values: {}",
            Shown(value),
            quoted.join(", ")
        );
        self.push(path, CauseReason::NotSupported, message);
    }

    /// Invalid, with a value that upstream does not show.
    pub(crate) fn invalid_unshown(&mut self, path: Path<'_>, detail: &str) {
        self.push(path, CauseReason::Invalid, format!("Invalid value: {detail}"));
    }

    pub(crate) fn forbidden(&mut self, path: Path<'_>, detail: impl fmt::Display) {
        self.push(path, CauseReason::Forbidden, format!("Forbidden: {detail}"));
    }

    pub(crate) fn duplicate(&mut self, path: Path<'_>, value: &str) {
        self.push(
            path,
            CauseReason::Duplicate,
            format!("Duplicate value: {}", go_quote(value)),
        );
    }

    pub(crate) fn duplicate_number(&mut self, path: Path<'_>, value: i32) {
        self.push(path, CauseReason::Duplicate, format!("Duplicate value: {value}"));
    }

    pub(crate) fn not_found(&mut self, path: Path<'_>, value: &str) {
        self.push(
            path,
            CauseReason::NotFound,
            format!("Not found: {}", go_quote(value)),
        );
    }

    pub(crate) fn too_long(&mut self, path: Path<'_>, max_bytes: usize) {
        self.push(
            path,
            CauseReason::TooLong,
            format!("Too long: may not be more than {max_bytes} bytes"),
        );
    }

    pub(crate) fn too_many(&mut self, path: Path<'_>, count: usize, max: usize) {
        self.push(
            path,
            CauseReason::TooMany,
            format!("Too many: {count}: must have at most {max} items"),
        );
    }

    fn push(&mut self, path: Path<'_>, reason: CauseReason, message: String) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(FieldError {
                field: path.to_string(),
                reason,
                message,
            });
        }
    }
}

/// A value as an error message shows it: numbers and booleans bare, strings quoted as Go quotes them.
pub(crate) trait BadValue {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

struct Shown<'a, T: BadValue>(&'a T);

impl<T: BadValue> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

macro_rules! bare_bad_value {
    ($($type:ty),*) => {$(
        impl BadValue for $type {
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
bare_bad_value!(i32, i64, bool);

impl BadValue for &str {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&go_quote(self))
    }
}

/// Anything else is shown as JSON, as recent API servers do.
impl BadValue for serde_json::Value {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RawJson(self.to_string()).show(f)
    }
}

/// JSON whose fields stand in the order of upstream's types.
pub(crate) struct RawJson(pub(crate) String);

impl BadValue for RawJson {
    /// Go escapes the characters that mean something in HTML.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => write!(f, "\\u{:04x}", u32::from(character))?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Quotes a string as Go's `%q` does.
pub(crate) fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            control if u32::from(control) < 0x20 || control == '\u{7f}' => {
                // Writing to a String cannot fail.
                let _ = write!(quoted, "\\x{:02x}", u32::from(control));
            }
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            printable => quoted.push(printable),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_renders_as_upstream_writes_it() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let container = containers.index(2);
        let resources = container.child("resources");
        let limits = resources.child("limits");
        assert_eq!(
            limits.key("cpu").to_string(),
            "spec.containers[2].resources.limits[cpu]"
        );
    }

    #[test]
    fn strings_are_quoted_as_go_quotes_them() {
        assert_eq!(go_quote("a\"b\\c\n\u{1}\u{7f}é"), "\"a\\\"b\\\\c\\n\\x01\\x7fé\"");
    }
}
