//! YAML into a tree with positions.
//!
//! Scalars are typed as the YAML libraries of Kubernetes clients type them (YAML 1.1: `yes` is a boolean,
//! `0644` is octal), because a manifest must mean here what it means there. Anchors, aliases and merge keys
//! are resolved while the tree is built; the number of nodes, those copied by aliases included, is bounded, so
//! that a small file cannot become a large tree.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_saphyr::granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, Tag};

use super::tree::{Key, Node, Position, Value};
use super::{DecodeError, MAX_DEPTH, MAX_NODES};

/// A long text counts as one node more per this many bytes, so that copying it is not free.
const BYTES_PER_NODE: usize = 256;

/// Stands for the backslash of an escaped apostrophe, which the parser does not know, so that columns stay the same.
const MASKED_BACKSLASH: char = '\u{e9b1}';

/// Texts with escaped apostrophes that one document may have. Each costs a pass over the document.
const MAX_MASKED_TEXTS: usize = 64;

/// Parses one YAML document whose first line is line `first_line` of the input. An empty one is `None`.
///
/// Texts in double quotes have the escapes that clients of Kubernetes know: `\'` is one, `\/` is none.
pub(super) fn parse(text: &str, first_line: u32) -> Result<Option<Node>, DecodeError> {
    let mut masked = Cow::Borrowed(text);
    for _ in 0..MAX_MASKED_TEXTS {
        match parse_masked(&masked, first_line) {
            Err(Failure::Escape { text_start, error }) => match mask_apostrophes(&masked, text_start) {
                Some(text) => masked = Cow::Owned(text),
                None => return Err(error),
            },
            Err(Failure::Other(error)) => return Err(error),
            Ok(root) => return Ok(root),
        }
    }
    let at = Position {
        line: first_line,
        column: 1,
    };
    let message = format!("more than {MAX_MASKED_TEXTS} texts with the escape \\'");
    Err(DecodeError::limit(&message, at))
}

/// Why a pass over a document failed.
enum Failure {
    /// A text in double quotes has an escape that the parser does not know.
    Escape {
        text_start: usize,
        error: DecodeError,
    },
    Other(DecodeError),
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Self::Other(error)
    }
}

/// Masks the backslashes of escaped apostrophes in the text in double quotes at `start`; `None` if it has none.
fn mask_apostrophes(text: &str, start: usize) -> Option<String> {
    let body = text.get(start..)?.strip_prefix('"')?;
    let mut masked = String::with_capacity(text.len() + 2);
    masked.push_str(&text[..=start]);
    let mut found = false;
    let mut characters = body.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => {
                masked.push_str(&body[index..]);
                return found.then_some(masked);
            }
            '\\' => match characters.next() {
                Some((_, '\'')) => {
                    found = true;
                    masked.extend([MASKED_BACKSLASH, '\'']);
                }
                Some((_, escaped)) => masked.extend(['\\', escaped]),
                None => return None,
            },
            other => masked.push(other),
        }
    }
    None
}

/// Whether a text in double quotes has an escaped slash, which YAML has and clients of Kubernetes reject.
fn has_escaped_slash(source: &str) -> bool {
    let mut characters = source.chars();
    while let Some(character) = characters.next() {
        if character == '\\' && characters.next() == Some('/') {
            return true;
        }
    }
    false
}

fn parse_masked(text: &str, first_line: u32) -> Result<Option<Node>, Failure> {
    let options = serde_saphyr::granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        emit_comments: false,
    };
    let mut builder = Builder {
        first_line,
        ..Builder::default()
    };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let at = builder.position_at(error.marker().line(), error.marker().col());
            let shown = DecodeError::syntax(&error.info(), at);
            match (error.kind(), error.marker().byte_offset()) {
                (ErrorKind::UnknownQuotedScalarEscape, Some(text_start)) => Failure::Escape {
                    text_start,
                    error: shown,
                },
                _ => Failure::Other(shown),
            }
        })?;
        if let Event::Scalar(_, ScalarStyle::DoubleQuoted, ..) = &event {
            let source = span.byte_range().and_then(|range| text.get(range));
            if source.is_some_and(has_escaped_slash) {
                let at = builder.position_at(span.start.line(), span.start.col());
                return Err(DecodeError::syntax("found unknown escape character `/`", at).into());
            }
        }
        builder.event(event, span)?;
    }
    Ok(builder.root)
}

#[derive(Default)]
struct Builder {
    first_line: u32,
    /// Collections that are still open, outermost first.
    open: Vec<Open>,
    anchors: BTreeMap<usize, (Node, usize)>,
    /// Nodes built so far, copies included.
    nodes: usize,
    root: Option<Node>,
}

struct Open {
    at: Position,
    anchor: usize,
    /// `nodes` when it was opened, to know its size when it closes.
    nodes_before: usize,
    content: OpenContent,
}

enum OpenContent {
    Sequence(Vec<Node>),
    Mapping {
        entries: Vec<(Key, Node)>,
        merges: Vec<Node>,
        key: Option<PendingKey>,
    },
}

enum PendingKey {
    Merge,
    Field(Key),
}

impl Builder {
    fn position_at(&self, line: usize, column: usize) -> Position {
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        // The parser counts lines from one and columns from zero.
        Position {
            line: narrow(line).saturating_add(self.first_line) - 1,
            column: narrow(column).saturating_add(1),
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), DecodeError> {
        let at = self.position_at(span.start.line(), span.start.col());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let weight = 1 + text.len() / BYTES_PER_NODE;
                self.count(weight - 1, at)?;
                let text = match style {
                    ScalarStyle::DoubleQuoted if text.contains(MASKED_BACKSLASH) => {
                        Cow::Owned(text.replace(&format!("{MASKED_BACKSLASH}'"), "'"))
                    }
                    _ => text,
                };
                let value = scalar(&text, style, tag.as_deref());
                self.finish(Node { at, value }, anchor, weight)
            }
            Event::SequenceStart(_, anchor, _) => self.open(at, anchor, OpenContent::Sequence(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let content = OpenContent::Mapping {
                    entries: Vec::new(),
                    merges: Vec::new(),
                    key: None,
                };
                self.open(at, anchor, content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, at),
            // Starts and ends of streams and documents; the rest is not emitted with our options.
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize, at: Position) -> Result<(), DecodeError> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes > MAX_NODES {
            return Err(DecodeError::limit(
                &format!("more than {MAX_NODES} values, those that aliases stand for included"),
                at,
            ));
        }
        Ok(())
    }

    fn open(&mut self, at: Position, anchor: usize, content: OpenContent) -> Result<(), DecodeError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(DecodeError::limit(
                &format!("nested deeper than {MAX_DEPTH} levels"),
                at,
            ));
        }
        self.open.push(Open {
            at,
            anchor,
            nodes_before: self.nodes,
            content,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), DecodeError> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let size = self.nodes - open.nodes_before + 1;
        let value = match open.content {
            OpenContent::Sequence(items) => Value::Sequence(items),
            OpenContent::Mapping {
                entries,
                merges,
                key: _,
            } => Value::Mapping(merged(entries, merges)?),
        };
        self.finish(Node { at: open.at, value }, open.anchor, size)
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), DecodeError> {
        // An anchor is known only once its node is complete, so a node cannot contain itself.
        let Some((node, size)) = self.anchors.get(&anchor) else {
            return Err(DecodeError::syntax(
                "an alias cannot refer to the node that contains it",
                at,
            ));
        };
        let size = *size;
        self.nodes = self.nodes.saturating_add(size - 1);
        if self.nodes > MAX_NODES {
            return self.count(0, at);
        }
        let copy = node.clone();
        self.finish(copy, 0, 1)
    }

    /// A node is complete: remember it if it is anchored and put it where it belongs.
    fn finish(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), DecodeError> {
        self.count(1, node.at)?;
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size));
            self.count(size, node.at)?;
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(OpenContent::Sequence(items)) => items.push(node),
            Some(OpenContent::Mapping { entries, merges, key }) => match key.take() {
                None => *key = Some(pending_key(node)?),
                Some(PendingKey::Merge) => merges.push(node),
                Some(PendingKey::Field(name)) => entries.push((name, node)),
            },
        }
        Ok(())
    }
}

fn pending_key(node: Node) -> Result<PendingKey, DecodeError> {
    let text = match node.value {
        Value::String(text) if text == "<<" => return Ok(PendingKey::Merge),
        Value::String(text) => text,
        Value::Bool(value) => value.to_string(),
        Value::Number(text) => text.into(),
        Value::Null => "null".to_owned(),
        Value::Sequence(_) | Value::Mapping(_) => {
            return Err(DecodeError::syntax(
                "a key must be a string, not a collection",
                node.at,
            ));
        }
    };
    Ok(PendingKey::Field(Key { at: node.at, text }))
}

/// Adds the entries of merged mappings; a mapping's own keys win, then earlier merges.
fn merged(mut entries: Vec<(Key, Node)>, merges: Vec<Node>) -> Result<Vec<(Key, Node)>, DecodeError> {
    if merges.is_empty() {
        return Ok(entries);
    }
    let mut taken: BTreeSet<String> = entries.iter().map(|(key, _)| key.text.clone()).collect();
    for merge in merges {
        let sources = match merge.value {
            Value::Sequence(items) => items,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Mapping(_) => {
                vec![merge]
            }
        };
        for source in sources {
            let Value::Mapping(inherited) = source.value else {
                return Err(DecodeError::syntax(
                    "`<<` needs a mapping or a list of mappings",
                    source.at,
                ));
            };
            entries.extend(
                inherited
                    .into_iter()
                    .filter(|(key, _)| taken.insert(key.text.clone())),
            );
        }
    }
    Ok(entries)
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    match tag.and_then(Tag::core_suffix) {
        Some("str" | "binary") => return Value::String(text.to_owned()),
        Some(_) => return plain(text),
        None => {}
    }
    match style {
        ScalarStyle::Plain => plain(text),
        ScalarStyle::SingleQuoted
        | ScalarStyle::DoubleQuoted
        | ScalarStyle::Literal
        | ScalarStyle::Folded => Value::String(text.to_owned()),
    }
}

/// The type of an unquoted scalar.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            return Value::Bool(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    match number(text) {
        Some(number) => Value::Number(number.into()),
        None => Value::String(text.to_owned()),
    }
}

/// An unquoted number in JSON's spelling.
fn number(text: &str) -> Option<String> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) {
        return None;
    }
    let compact = text.replace('_', "");
    let (sign, digits) = match compact.as_bytes() {
        [b'-', ..] => ("-", &compact[1..]),
        [b'+', ..] => ("", &compact[1..]),
        _ => ("", compact.as_str()),
    };
    let radix = |digits: &str, radix| {
        u64::from_str_radix(digits, radix)
            .ok()
            .map(|value| format!("{sign}{value}"))
    };
    match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => return radix(&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => return radix(&digits[2..], 2),
        [b'0', b'o' | b'O', ..] => return radix(&digits[2..], 8),
        [b'0', rest @ ..] if !rest.is_empty() && rest.iter().all(|byte| (b'0'..=b'7').contains(byte)) => {
            return radix(digits, 8);
        }
        _ => {}
    }
    decimal(sign, digits)
}

fn decimal(sign: &str, digits: &str) -> Option<String> {
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(index) => (&digits[..index], Some(&digits[index + 1..])),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if exponent.is_empty() || !all_digits(exponent) {
            return None;
        }
    }
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = if fraction.is_empty() {
        String::new()
    } else {
        format!(".{fraction}")
    };
    let exponent = exponent
        .map(|exponent| format!("e{exponent}"))
        .unwrap_or_default();
    Some(format!("{sign}{whole}{fraction}{exponent}"))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn show(node: &Node) -> String {
        match &node.value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(text) => text.to_string(),
            Value::String(text) => format!("{text:?}"),
            Value::Sequence(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(",")),
            Value::Mapping(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(key, node)| format!("{}:{}", key.text, show(node)))
                    .collect();
                format!("{{{}}}", entries.join(","))
            }
        }
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(show(&parse(text, 1).unwrap().unwrap()), expected, "{text}");
    }

    #[test]
    fn unquoted_scalars_have_the_types_kubernetes_gives_them() {
        check(
            "[a, '1', 1, 0644, 0x1F, 1_000, yes, off, ~, 1.50, 1e3, 08, +5, -0b11]",
            "[\"a\",\"1\",1,420,31,1000,true,false,null,1.50,1e3,8,5,-3]",
        );
        check(
            "[1.2.3, 12:30, 2001-01-01, .inf, v1, !!str 5, '']",
            "[\"1.2.3\",\"12:30\",\"2001-01-01\",\".inf\",\"v1\",\"5\",\"\"]",
        );
    }

    #[test]
    fn anchors_and_merge_keys() {
        check(
            "base: &b {x: 1, w: 2}\nown: {<<: *b, w: 3}\nlist: [*b]",
            "{base:{x:1,w:2},own:{w:3,x:1},list:[{x:1,w:2}]}",
        );
        check(
            "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc:\n  <<: [*a, *b]",
            "{a:{x:1},b:{x:2,z:3},c:{x:1,z:3}}",
        );
        assert!(parse("a: &a [*a]", 1).is_err());
        assert!(parse("<<: 5", 1).is_err());
    }

    #[test]
    fn positions_count_from_the_first_line() {
        let node = parse("a:\n  b: 1\n", 10).unwrap().unwrap();
        assert_eq!(node.locate("a.b"), Position { line: 11, column: 3 });
    }

    #[test]
    fn escapes_are_those_of_kubernetes_clients() {
        check(
            r#"["it\'s", "\\'", "\"\'\"", 'a\/b', a\/b]"#,
            r#"["it's","\\'","\"'\"","a\\/b","a\\/b"]"#,
        );
        assert!(parse(r#"a: "b\/c""#, 1).is_err());
        assert!(parse(r#"a: "b\qc""#, 1).is_err());
        let node = parse(r#"{"\'": {b: 1}}"#, 1).unwrap().unwrap();
        assert_eq!(node.locate("'.b"), Position { line: 1, column: 9 });
        let many = r#"- "\'""#.to_owned() + "\n";
        assert!(parse(&many.repeat(20), 1).is_ok());
        assert!(parse(&many.repeat(1000), 1).is_err());
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let previous = vec![format!("*a{}", level - 1); 10].join(", ");
            writeln!(bomb, "a{level}: &a{level} [{previous}]").unwrap();
        }
        assert!(parse(&bomb, 1).unwrap_err().to_string().contains("aliases"));
    }

    #[test]
    fn deep_nesting_is_refused() {
        assert!(parse(&"[".repeat(10_000), 1).is_err());
        assert!(parse(&"- ".repeat(10_000), 1).is_err());
        let stairs = (0..2_000).fold(String::new(), |text, depth| text + &" ".repeat(depth) + "a:\n");
        assert!(parse(&stairs, 1).is_err());
    }
}
