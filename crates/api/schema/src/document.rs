//! From bytes to objects: YAML documents, JSON, streams of JSON objects, `List`s.
//!
//! [`decode_documents`] splits the input; each [`Document`] is then decoded on its own, so that one bad object
//! does not hide the next. Everything is bounded before it is parsed: size, depth, and the number of values that
//! YAML aliases may unfold to.
//!
//! JSON is parsed without positions first. Only if something is wrong with it is it parsed again into a tree that knows
//! the line and column of everything.

mod duplicates;
mod json;
mod suggest;
mod tree;
mod yaml;

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::check::{Problem, ProblemKind, check};
use crate::{FieldPath, Message, Profile};
pub use duplicates::{Parsed, parse_json, parse_yaml};
use tree::Node;
pub use tree::Position;

/// Bytes of one document: the request limit of an upstream API server.
pub const MAX_DOCUMENT_BYTES: usize = 3 * 1024 * 1024;
/// Levels of nesting. A Pod needs about fifteen.
const MAX_DEPTH: usize = 100;
/// Values in one YAML document, copies made by aliases included. A Pod has a few hundred.
const MAX_NODES: usize = 400_000;

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct DecodeError {
    /// What went wrong, without the place.
    pub message: String,
    /// The field path, empty when the document as a whole is meant.
    pub field: String,
    pub at: Option<Position>,
    /// What to do about it, where we know.
    pub hint: Option<String>,
    /// Nothing after this point of the input can be read.
    pub fatal: bool,
}

impl DecodeError {
    pub fn new(message: impl Into<String>, at: Option<Position>) -> Self {
        Self {
            message: message.into(),
            field: String::new(),
            at,
            hint: None,
            fatal: false,
        }
    }

    fn syntax(message: &str, at: Position) -> Self {
        Self {
            fatal: true,
            ..Self::new(format!("syntax error: {message}"), Some(at))
        }
    }

    fn limit(message: &str, at: Position) -> Self {
        Self::new(format!("the document is too large: {message}"), Some(at))
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "line {}, column {}: ", at.line, at.column)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong with a document: at least one error, in the order of the document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct DecodeErrors(Vec<DecodeError>);

impl DecodeErrors {
    pub fn first(&self) -> &DecodeError {
        self.0.first().expect("there is at least one error")
    }

    pub fn iter(&self) -> std::slice::Iter<'_, DecodeError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a DecodeErrors {
    type Item = &'a DecodeError;
    type IntoIter = std::slice::Iter<'a, DecodeError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<DecodeError> for DecodeErrors {
    fn from(error: DecodeError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for DecodeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

/// One object of the input.
#[derive(Debug)]
pub struct Document<'a> {
    /// Which document of the input it is, from zero.
    pub index: usize,
    /// Which item of a `List` it is, if the document is one.
    pub item: Option<usize>,
    body: Body<'a>,
}

#[derive(Debug)]
enum Body<'a> {
    /// JSON text, not parsed yet.
    Json {
        text: &'a str,
        start: Position,
    },
    Tree(Node),
}

/// The kind that an object claims to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectType {
    pub api_version: String,
    pub kind: String,
}

impl ObjectType {
    /// The fields of the kind; `None` if the table does not have it in this version.
    pub fn message(&self) -> Option<&'static Message> {
        let (group, version) = self
            .api_version
            .rsplit_once('/')
            .unwrap_or(("", &self.api_version));
        let message = Message::find(group, &self.kind)?;
        (version == "v1" && message.is_kind).then_some(message)
    }
}

/// An object as decoded, or why there is none; type and name are known in both cases as far as they could be read.
#[derive(Debug)]
pub struct Decoded {
    pub object_type: ObjectType,
    pub name: String,
    pub object: Result<Value, DecodeErrors>,
}

impl Document<'_> {
    /// The type and the name that the document claims.
    pub fn identity(&self) -> (ObjectType, String) {
        match self.parse() {
            Ok(parsed) => identity(&parsed.value),
            Err(_) => Default::default(),
        }
    }

    /// Decodes the document strictly. `accept` judges the type that it claims, and may reject it.
    pub fn decode(
        &self,
        profile: Profile,
        accept: impl FnOnce(&ObjectType) -> Result<(), DecodeError>,
    ) -> Decoded {
        let parsed = match self.parse() {
            Ok(parsed) => parsed,
            Err(error) => {
                return Decoded {
                    object_type: ObjectType::default(),
                    name: String::new(),
                    object: Err(error.into()),
                };
            }
        };
        let (object_type, name) = identity(&parsed.value);
        let object = claimed_type(&parsed.value)
            .and_then(|()| accept(&object_type))
            .map_err(|error| self.place(error).into())
            .and_then(|()| self.decode_as(&object_type, parsed, profile));
        Decoded {
            object_type,
            name,
            object,
        }
    }

    fn decode_as(
        &self,
        object_type: &ObjectType,
        parsed: Parsed,
        profile: Profile,
    ) -> Result<Value, DecodeErrors> {
        let Some(message) = object_type.message() else {
            let message = format!(
                "kind {:?} of apiVersion {:?} is unknown",
                object_type.kind, object_type.api_version
            );
            return Err(self.place(DecodeError::new(message, None)).into());
        };
        let Parsed {
            mut value,
            mut problems,
        } = parsed;
        problems.extend(check(message, &mut value, profile));
        if problems.is_empty() {
            return Ok(value);
        }
        let tree = self.tree();
        let mut errors: Vec<DecodeError> = problems
            .iter()
            .map(|problem| explain(problem, tree.as_deref(), message, profile))
            .collect();
        errors.sort_by_key(|error| error.at);
        Err(DecodeErrors(errors))
    }

    fn parse(&self) -> Result<Parsed, DecodeError> {
        match &self.body {
            Body::Json { text, start } => parse_json(text.as_bytes()).map_err(|_| {
                // The exact parser says what is wrong and where.
                let error = json::parse(text, *start).err();
                error.unwrap_or_else(|| DecodeError::syntax("this is not JSON", *start))
            }),
            Body::Tree(node) => duplicates::from_tree(node),
        }
    }

    /// The document with the places of everything in it.
    fn tree(&self) -> Option<Cow<'_, Node>> {
        match &self.body {
            Body::Json { text, start } => json::parse(text, *start).ok().map(Cow::Owned),
            Body::Tree(node) => Some(Cow::Borrowed(node)),
        }
    }

    /// Adds the place to an error about the value of a field that the message names.
    fn place(&self, error: DecodeError) -> DecodeError {
        let tree = self.tree();
        let at = tree.map(|node| node.get(&error.field).map_or(node.at, |found| found.at));
        DecodeError {
            at: error.at.or(at),
            field: String::new(),
            ..error
        }
    }

    /// The places of field paths of this document in the input, or of their nearest parents that exist.
    pub fn locate_all<'f>(&self, fields: impl Iterator<Item = &'f str>) -> Vec<Option<Position>> {
        let tree = self.tree();
        let locate = |field| tree.as_ref().map(|node| node.locate(field));
        fields.map(locate).collect()
    }
}

fn identity(value: &Value) -> (ObjectType, String) {
    let text = |pointer: &str| {
        let found = value.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let object_type = ObjectType {
        api_version: text("/apiVersion"),
        kind: text("/kind"),
    };
    (object_type, text("/metadata/name"))
}

/// An object says what it is; anything else is rejected before its fields are looked at.
fn claimed_type(value: &Value) -> Result<(), DecodeError> {
    let Value::Object(map) = value else {
        let message = format!(
            "expected an object with apiVersion and kind, found {}",
            kind_of(value)
        );
        return Err(DecodeError::new(message, None));
    };
    for field in ["kind", "apiVersion"] {
        let message = match map.get(field) {
            Some(Value::String(_)) => continue,
            None | Some(Value::Null) => format!("{field} is missing"),
            Some(found) => format!("{field} must be a string, found {}", kind_of(found)),
        };
        return Err(DecodeError {
            field: field.to_owned(),
            ..DecodeError::new(message, None)
        });
    }
    Ok(())
}

const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A problem with its place, and with a hint where there is one.
fn explain(
    problem: &Problem,
    node: Option<&Node>,
    message: &'static Message,
    profile: Profile,
) -> DecodeError {
    let last = match problem.path.0.last() {
        Some(crate::PathStep::Field(name)) => name.as_str(),
        Some(crate::PathStep::Index(_)) | None => "",
    };
    let mut error = DecodeError {
        field: problem.path.to_string(),
        ..DecodeError::new(
            problem.kind.to_string(),
            node.map(|node| node.locate_path(&problem.path)),
        )
    };
    match &problem.kind {
        ProblemKind::UnknownField { .. } => {
            error.message = format!("unknown field {last:?}");
            error.hint = hint(&problem.path, last, message, profile);
        }
        ProblemKind::DuplicateField => {
            let places = node
                .map(|node| node.locate_keys(&problem.path))
                .unwrap_or_default();
            error.message = format!("duplicate field {last:?}");
            if let [first, .., second] = places.as_slice() {
                error.at = Some(*second);
                error.message = format!("{}; it is also on line {}", error.message, first.line);
            }
        }
        ProblemKind::WrongType {
            wants_quotes: true, ..
        } => {
            error.hint = Some("put the value in quotes".to_owned());
        }
        ProblemKind::WrongType { .. } | ProblemKind::Malformed { .. } | ProblemKind::TooDeep => {}
    }
    error
}

/// What was probably meant by an unknown field.
fn hint(path: &FieldPath, name: &str, root: &'static Message, profile: Profile) -> Option<String> {
    let message = path.message(root)?;
    if message.field(name).is_some() {
        return Some("the field exists in the pulselet profile, not in Kubernetes".to_owned());
    }
    let known = message.all_fields().filter(|field| field.exists_in(profile));
    suggest::nearest(name, known.map(|field| field.name)).map(|field| format!("did you mean {field:?}?"))
}

/// Splits an input into documents. Items of a `List` come one by one. An error that is fatal is the last item.
pub fn decode_documents(input: &[u8]) -> Documents<'_> {
    let state = match std::str::from_utf8(input) {
        Ok(text) => {
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            if text.trim_start().starts_with(['{', '[']) {
                State::Json { rest: text }
            } else {
                State::Yaml { rest: text }
            }
        }
        Err(error) => State::Failed(DecodeError {
            fatal: true,
            ..DecodeError::new(
                format!(
                    "the input is not text (byte {} is not UTF-8); expected YAML or JSON",
                    error.valid_up_to()
                ),
                None,
            )
        }),
    };
    Documents {
        state,
        at: Position { line: 1, column: 1 },
        index: 0,
        items: Vec::new().into_iter(),
    }
}

/// See [`decode_documents`].
#[derive(Debug)]
pub struct Documents<'a> {
    state: State<'a>,
    /// Where `rest` starts.
    at: Position,
    index: usize,
    /// What is left of the `List` under way.
    items: std::vec::IntoIter<Document<'a>>,
}

#[derive(Debug)]
enum State<'a> {
    Json { rest: &'a str },
    Yaml { rest: &'a str },
    Failed(DecodeError),
    Done,
}

impl<'a> Iterator for Documents<'a> {
    type Item = Result<Document<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.items.next() {
                return Some(Ok(item));
            }
            let body = match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return None,
                State::Failed(error) => Err(error),
                State::Json { rest } => self.next_json(rest)?,
                State::Yaml { rest } => self.next_yaml(rest)?,
            };
            match body {
                Ok(body) => {
                    let index = self.index;
                    self.index += 1;
                    match list_items(body) {
                        Ok(items) => {
                            let document = |(item, node)| Document {
                                index,
                                item: Some(item),
                                body: Body::Tree(node),
                            };
                            self.items = items
                                .into_iter()
                                .enumerate()
                                .map(document)
                                .collect::<Vec<_>>()
                                .into_iter();
                        }
                        Err(body) => {
                            return Some(Ok(Document {
                                index,
                                item: None,
                                body,
                            }));
                        }
                    }
                }
                Err(error) => {
                    self.index += 1;
                    if error.fatal {
                        self.state = State::Done;
                    }
                    return Some(Err(error));
                }
            }
        }
    }
}

impl<'a> Documents<'a> {
    /// The number of the document that comes next, or that an error was about if one was just returned.
    pub const fn documents_read(&self) -> usize {
        self.index
    }

    fn advance(&mut self, consumed: &str) {
        match consumed.rfind('\n') {
            Some(last) => {
                let lines = consumed.bytes().filter(|&byte| byte == b'\n').count();
                self.at.line = self
                    .at
                    .line
                    .saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
                self.at.column = column_after(&consumed[last + 1..], 1);
            }
            None => self.at.column = column_after(consumed, self.at.column),
        }
    }

    fn next_json(&mut self, rest: &'a str) -> Option<Result<Body<'a>, DecodeError>> {
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.advance(&rest[..rest.len() - trimmed.len()]);
        if trimmed.is_empty() {
            return None;
        }
        let start = self.at;
        let mut stream = serde_json::Deserializer::from_str(trimmed).into_iter::<&RawValue>();
        let Some(Ok(value)) = stream.next() else {
            // The exact parser says what is wrong, in the same words as for any other document.
            let error = json::parse(trimmed, start).err();
            let error = error.unwrap_or_else(|| DecodeError::syntax("this is not JSON", start));
            return Some(Err(DecodeError { fatal: true, ..error }));
        };
        let text = value.get();
        self.advance(text);
        self.state = State::Json {
            rest: &trimmed[text.len()..],
        };
        if text.len() > MAX_DOCUMENT_BYTES {
            return Some(Err(too_many_bytes(text.len(), start)));
        }
        Some(Ok(Body::Json { text, start }))
    }

    fn next_yaml(&mut self, mut rest: &'a str) -> Option<Result<Body<'a>, DecodeError>> {
        loop {
            if rest.is_empty() {
                return None;
            }
            let chunk = &rest[..document_end(rest)];
            let first_line = self.at.line;
            self.advance(chunk);
            rest = &rest[chunk.len()..];
            if is_blank(chunk) {
                continue;
            }
            self.state = State::Yaml { rest };
            if chunk.len() > MAX_DOCUMENT_BYTES {
                return Some(Err(too_many_bytes(
                    chunk.len(),
                    Position {
                        line: first_line,
                        column: 1,
                    },
                )));
            }
            match yaml::parse(chunk, first_line) {
                Ok(
                    Some(Node {
                        value: tree::Value::Null,
                        ..
                    })
                    | None,
                ) => {}
                Ok(Some(node)) => return Some(Ok(Body::Tree(node))),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn column_after(text: &str, from: u32) -> u32 {
    from.saturating_add(u32::try_from(text.chars().count()).unwrap_or(u32::MAX))
}

fn too_many_bytes(bytes: usize, at: Position) -> DecodeError {
    DecodeError::limit(
        &format!("{bytes} bytes, at most {MAX_DOCUMENT_BYTES} are accepted"),
        at,
    )
}

/// Where the first YAML document of the text ends: before the next line that begins with `---`, or after `...`. A
/// directive belongs to the document that follows it.
fn document_end(text: &str) -> usize {
    let mut end = 0;
    let mut in_document = false;
    for line in text.split_inclusive('\n') {
        let marker = is_marker(line, "---");
        if marker && in_document {
            return end;
        }
        end += line.len();
        if is_marker(line, "...") && in_document {
            return end;
        }
        let trimmed = line.trim();
        in_document |= marker || !(trimmed.is_empty() || trimmed.starts_with('#') || line.starts_with('%'));
    }
    end
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|tail| tail.is_empty() || tail.starts_with([' ', '\t', '\r', '\n']))
}

/// Nothing but comments, blank lines and markers: not a document.
fn is_blank(chunk: &str) -> bool {
    chunk.lines().all(|line| {
        let trimmed = line.trim();
        trimmed.is_empty() || trimmed.starts_with('#') || trimmed == "---" || trimmed == "..."
    })
}

/// The items of a `List`, or the body back if it is none. A document that cannot be read is none.
fn list_items(body: Body<'_>) -> Result<Vec<Node>, Body<'_>> {
    let node = match body {
        Body::Json { text, start } => {
            // A Pod is the usual case, and a List names itself: without the word there is no need to parse.
            if !text.contains("\"List\"") && !text.contains("\"PodList\"") {
                return Err(body);
            }
            match json::parse(text, start) {
                Ok(node) => node,
                Err(_) => return Err(body),
            }
        }
        Body::Tree(node) => node,
    };
    let is_list = node.get("apiVersion").and_then(Node::as_str) == Some("v1")
        && matches!(node.get("kind").and_then(Node::as_str), Some("List" | "PodList"));
    match (is_list, node) {
        (
            true,
            Node {
                value: tree::Value::Mapping(entries),
                ..
            },
        ) => match entries.into_iter().find(|(key, _)| key.text == "items") {
            Some((
                _,
                Node {
                    value: tree::Value::Sequence(items),
                    ..
                },
            )) => Ok(items),
            Some((
                _,
                Node {
                    value: tree::Value::Null,
                    ..
                },
            ))
            | None => Ok(Vec::new()),
            Some((_, other)) => Err(Body::Tree(other)),
        },
        (_, node) => Err(Body::Tree(node)),
    }
}
