//! From bytes to Pods, config maps and secrets: YAML documents, JSON, streams of JSON objects, `List`s.
//!
//! [`decode_documents`] splits the input; each [`Document`] is then decoded on its own, so that one bad object
//! does not hide the next. Everything is bounded before it is parsed: size, depth, and the number of values that
//! YAML aliases may unfold to. Nothing here judges whether a Pod makes sense; that is validation's work.
//!
//! JSON takes a fast path straight into the types. Whenever that fails for any reason the document is parsed
//! again into a tree with positions, whose answer counts.

mod de;
mod json;
mod strict;
mod suggest;
mod tree;
mod yaml;

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::pod::{ApiVersion, Pod, PodKind, PodSpec};
use crate::profile::Profile;
use crate::status::PodStatus;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
pub use tree::Position;
use tree::{Node, Value};

/// Bytes of one document: the request limit of an upstream API server.
pub const MAX_DOCUMENT_BYTES: usize = 3 * 1024 * 1024;
/// Levels of nesting. A Pod needs about fifteen.
const MAX_DEPTH: usize = 100;
/// Values in one YAML document, copies made by aliases included. A Pod has a few hundred.
const MAX_NODES: usize = 400_000;

/// A document that is not a Pod, or not even a document.
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
    fn new(message: impl Into<String>, at: Option<Position>) -> Self {
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

    fn with_hint(mut self, hint: impl Into<String>) -> Self {
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

/// Which fields exist, beyond those of the types: a profile may not know some of them.
#[derive(Debug, Clone, Copy)]
struct FieldRules {
    profile: Profile,
}

/// Fields of Probe that upstream does not have.
const PULSELET_PROBE_FIELDS: [&str; 4] = [
    "initialDelayMilliseconds",
    "periodMilliseconds",
    "timeoutMilliseconds",
    "initializationFailureThreshold",
];

impl FieldRules {
    fn allows(self, type_name: &str, field: &str) -> bool {
        type_name != "Probe" || self.allows_anywhere(field)
    }

    /// Whether the field is known without a look at the type it stands in.
    fn allows_anywhere(self, field: &str) -> bool {
        match self.profile {
            Profile::Pulselet => true,
            Profile::Kubernetes => !PULSELET_PROBE_FIELDS.contains(&field),
        }
    }

    fn hint(self, type_name: &str, field: &str) -> Option<&'static str> {
        if type_name != "Probe" {
            return None;
        }
        (!self.allows_anywhere(field))
            .then_some("the field exists in the pulselet profile, not in Kubernetes")
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
    /// JSON text, not looked at yet.
    Json {
        text: &'a str,
        start: Position,
    },
    Tree(Node),
}

/// A Pod as decoded, or why there is none; `kind` and `name` are known in both cases as far as they could be read.
#[derive(Debug)]
pub struct Decoded {
    pub kind: String,
    pub name: String,
    pub pod: Result<Pod, DecodeError>,
}

/// What a file may hold for a node.
#[derive(Debug)]
pub enum ManifestObject {
    Pod(Box<Pod>),
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

/// An object as decoded, or why there is none; `kind` and `name` are known in both cases as far as they could be read.
#[derive(Debug)]
pub struct DecodedObject {
    pub kind: String,
    pub name: String,
    pub object: Result<ManifestObject, DecodeError>,
}

impl From<Decoded> for DecodedObject {
    fn from(Decoded { kind, name, pod }: Decoded) -> Self {
        Self {
            kind,
            name,
            object: pod.map(|pod| ManifestObject::Pod(Box::new(pod))),
        }
    }
}

/// A Pod that says of itself that it is one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", rename = "Pod")]
struct Manifest {
    #[expect(dead_code, reason = "its presence and value are checked by decoding it")]
    api_version: ApiVersion,
    #[expect(dead_code, reason = "its presence and value are checked by decoding it")]
    kind: PodKind,
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

impl From<Manifest> for Pod {
    fn from(manifest: Manifest) -> Self {
        let Manifest {
            metadata,
            spec,
            status,
            ..
        } = manifest;
        Self {
            metadata,
            spec,
            status,
            ..Self::default()
        }
    }
}

impl Document<'_> {
    /// Decodes the document as a Pod of this profile.
    pub fn decode(&self, profile: Profile) -> Decoded {
        let rules = FieldRules { profile };
        match &self.body {
            Body::Json { text, start } => {
                if let Some(pod) = fast(text, rules) {
                    return Decoded {
                        kind: "Pod".to_owned(),
                        name: pod.name().to_owned(),
                        pod: Ok(pod),
                    };
                }
                match json::parse(text, *start) {
                    Ok(node) => exact(&node, rules),
                    Err(error) => Decoded {
                        kind: String::new(),
                        name: String::new(),
                        pod: Err(error),
                    },
                }
            }
            Body::Tree(node) => exact(node, rules),
        }
    }

    /// Decodes the document as an object that a node can use, whatever its kind.
    pub fn decode_object(&self, profile: Profile) -> DecodedObject {
        let rules = FieldRules { profile };
        match &self.body {
            // A Pod is the usual case, and the others name themselves: without the word there is no need to parse.
            Body::Json { text, start } if text.contains("\"ConfigMap\"") || text.contains("\"Secret\"") => {
                match json::parse(text, *start) {
                    Ok(node) if is_object_beside_pods(&node) => exact_object(&node, rules),
                    Ok(_) | Err(_) => self.decode(profile).into(),
                }
            }
            Body::Tree(node) if is_object_beside_pods(node) => exact_object(node, rules),
            Body::Json { .. } | Body::Tree(_) => self.decode(profile).into(),
        }
    }

    /// Where field paths of this document stand in the input, or the nearest parents that are there.
    pub fn locate_all<'f>(&self, fields: impl Iterator<Item = &'f str>) -> Vec<Option<Position>> {
        let parsed;
        let node = match &self.body {
            Body::Json { text, start } => {
                parsed = json::parse(text, *start).ok();
                parsed.as_ref()
            }
            Body::Tree(node) => Some(node),
        };
        fields.map(|field| node.map(|node| node.locate(field))).collect()
    }
}

fn fast(text: &str, rules: FieldRules) -> Option<Pod> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let manifest = Manifest::deserialize(strict::Strict::new(&mut deserializer, rules)).ok()?;
    deserializer.end().ok()?;
    Some(manifest.into())
}

fn exact(node: &Node, rules: FieldRules) -> Decoded {
    let (kind, name) = kind_and_name(node);
    let pod = check_kind(node).and_then(|()| strictly::<Manifest>(node, rules).map(Pod::from));
    Decoded { kind, name, pod }
}

/// A config map or a secret, by its own word.
fn is_object_beside_pods(node: &Node) -> bool {
    let text = |field: &str| node.get(field).and_then(Node::as_str);
    text("apiVersion") == Some("v1") && matches!(text("kind"), Some("ConfigMap" | "Secret"))
}

fn exact_object(node: &Node, rules: FieldRules) -> DecodedObject {
    let (kind, name) = kind_and_name(node);
    let object = if kind == "Secret" {
        strictly(node, rules).map(|secret| ManifestObject::Secret(Box::new(secret)))
    } else {
        strictly(node, rules).map(|map| ManifestObject::ConfigMap(Box::new(map)))
    };
    DecodedObject { kind, name, object }
}

fn kind_and_name(node: &Node) -> (String, String) {
    let text_of = |node: Option<&Node>| node.and_then(Node::as_str).unwrap_or_default().to_owned();
    let name = node.get("metadata").and_then(|metadata| metadata.get("name"));
    (text_of(node.get("kind")), text_of(name))
}

fn strictly<'a, T: Deserialize<'a>>(node: &'a Node, rules: FieldRules) -> Result<T, DecodeError> {
    T::deserialize(de::TreeDeserializer::new(node, rules)).map_err(|error| DecodeError {
        field: error.path(),
        message: error.message,
        at: error.at.or(Some(node.at)),
        hint: error.hint,
        fatal: false,
    })
}

/// Says what is supported before anyone reads a list of unknown fields of a Deployment.
fn check_kind(node: &Node) -> Result<(), DecodeError> {
    const SUPPORTED: &str = "supported are kind Pod, ConfigMap, Secret and List of apiVersion v1; other kinds need an API \
                             server with their controllers, which `pulselet node --kubeconfig` can join";
    if !matches!(node.value, Value::Mapping(_)) {
        let message = format!(
            "expected an object with apiVersion and kind, found {}",
            node.kind()
        );
        return Err(DecodeError::new(message, Some(node.at)).with_hint(SUPPORTED));
    }
    for (field, wanted) in [("kind", "Pod"), ("apiVersion", "v1")] {
        match node.get(field) {
            None => {
                return Err(
                    DecodeError::new(format!("{field} is missing"), Some(node.at)).with_hint(SUPPORTED)
                );
            }
            Some(found) => match found.as_str() {
                Some(text) if text == wanted => {}
                Some(text) => {
                    let message = format!("{field} {text:?} is not supported");
                    return Err(DecodeError::new(message, Some(found.at)).with_hint(SUPPORTED));
                }
                None => {
                    let message = format!("{field} must be a string, found {}", found.kind());
                    return Err(DecodeError::new(message, Some(found.at)).with_hint(SUPPORTED));
                }
            },
        }
    }
    Ok(())
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
                        value: Value::Null, ..
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
                value: Value::Mapping(entries),
                ..
            },
        ) => match entries.into_iter().find(|(key, _)| key.text == "items") {
            Some((
                _,
                Node {
                    value: Value::Sequence(items),
                    ..
                },
            )) => Ok(items),
            Some((
                _,
                Node {
                    value: Value::Null, ..
                },
            ))
            | None => Ok(Vec::new()),
            Some((_, other)) => Err(Body::Tree(other)),
        },
        (_, node) => Err(Body::Tree(node)),
    }
}
