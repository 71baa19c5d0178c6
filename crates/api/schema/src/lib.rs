//! The fields of Kubernetes objects: one table, from which everything follows that needs to know a field.
//!
//! The table names, types, numbers and gates every field of every kind. Strict decoding of JSON and YAML, protobuf, the merge
//! keys of patches and of server-side apply, and the descriptions that `kubectl explain` prints all read it. It consists of
//! two texts: `fields.txt`, which `cargo xtask fields` generates from upstream's types, and `overlay.txt`, which adds
//! Pulselet's own fields and its documentation of fields whose behavior is Pulselet's own.
//!
//! A line without a space at its start names a message; ` kind` after it means that it may name its kind, and ` atomic` that
//! it is owned as a whole. The lines below are its fields: number in protobuf, name in JSON, type, and flags. The name `.`
//! means that the fields of the type are those of the message itself. A type is preceded by `*` where absent and zero differ,
//! by `[]` for lists and by `{}` for maps from strings. In the overlay, `-` instead of a number refers to a field of
//! upstream's, and a line that begins with two spaces documents the field above it.
//!
//! Invariants: every type that the table names is in it, numbers and names are unique within a message, numbers of
//! Pulselet's own fields of upstream's messages are at least [`PRIVATE_NUMBERS`], and messages nest within [`MAX_DEPTH`] of
//! bodies. The crate leaves to others what a value means: defaults, validation and gates are the model's.

pub mod canonical;
pub mod check;
pub mod document;
pub mod openapi;
mod path;
mod profile;
pub mod protobuf;
pub mod quantity;
mod sample;
mod time;

pub use path::{FieldPath, PathStep};
pub use profile::Profile;
pub use sample::sample;
pub use time::timestamp;

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The generated part of the table.
const TABLE: &str = include_str!("fields.txt");
/// The part of the table that is Pulselet's own.
const OVERLAY: &str = include_str!("overlay.txt");

/// The first protobuf number of Pulselet's own fields: numbers from here on are for use within an organization.
pub const PRIVATE_NUMBERS: u64 = 50_001;

/// Levels of messages that are followed. Objects have about twenty; a few messages can hold themselves.
pub const MAX_DEPTH: usize = 64;

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::parse(TABLE, OVERLAY));

/// All messages.
#[derive(Debug)]
struct Schema {
    messages: Vec<Message>,
    by_name: BTreeMap<&'static str, usize>,
}

/// The fields of an object or of a part of one.
#[derive(Debug)]
pub struct Message {
    /// `core.PodSpec`: the package and the name that upstream gives it.
    pub name: &'static str,
    /// It is an object with `apiVersion` and `kind`.
    pub is_kind: bool,
    /// It is owned as a whole, not field by field.
    pub atomic: bool,
    pub fields: Vec<Field>,
    /// The field that the next line of documentation is about.
    described: usize,
    /// By their names in JSON, those of inline messages among them: the message and the field.
    names: BTreeMap<&'static str, (usize, usize)>,
}

#[derive(Debug)]
pub struct Field {
    /// In protobuf.
    pub number: u64,
    /// In JSON.
    pub name: &'static str,
    pub shape: Shape,
    pub kind: FieldType,
    pub presence: Presence,
    pub list: ListKind,
    /// How strategic merge patches see the list, if not as a whole.
    pub patch: ListKind,
    /// The map, or the object, is owned as a whole.
    pub atomic: bool,
    /// The only profile that has the field; `None` if all have it.
    pub profile: Option<Profile>,
    /// The feature gate that governs the field.
    pub gate: Option<&'static str>,
    /// What Pulselet itself says about the field.
    pub documentation: Option<String>,
}

/// How often a value is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Once; absent is the same as zero.
    One,
    /// At most once; absent and zero differ.
    Optional,
    List,
    /// By names that are texts.
    Map,
    /// Its fields are those of the message around it.
    Inline,
}

/// What is written in JSON when there is nothing to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Nothing, except for messages.
    OmitEmpty,
    /// Nothing.
    OmitZero,
    /// The zero value.
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    Text,
    Bool,
    Int32,
    Int64,
    Double,
    Bytes,
    /// Whole seconds.
    Time,
    MicroTime,
    /// A number with its unit, as text in a message.
    Quantity,
    IntOrString,
    /// Any JSON, as bytes in a message.
    Json,
    /// Texts that are a message of their own.
    Texts,
    /// The place of a message in the table.
    Message(usize),
}

/// How two versions of a list become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// The new one replaces the old.
    Atomic,
    /// Values, each at most once.
    Set,
    /// Items are the same when these fields are.
    Map(&'static [&'static str]),
}

impl Schema {
    fn parse(table: &'static str, overlay: &'static str) -> Self {
        let is_header = |line: &&str| !line.starts_with(' ');
        let mut by_name = BTreeMap::new();
        for line in table.lines().chain(overlay.lines()).filter(is_header) {
            let index = by_name.len();
            by_name.entry(first_word(line)).or_insert(index);
        }
        let mut messages: Vec<Message> = Vec::new();
        let mut current = 0;
        for line in table.lines().chain(overlay.lines()) {
            if !line.starts_with(' ') {
                current = by_name[first_word(line)];
                if current == messages.len() {
                    messages.push(Message::parse(line));
                }
            } else if let Some(text) = line.strip_prefix("  ") {
                messages[current].document(text);
            } else {
                messages[current].add(line, &by_name);
            }
        }
        for index in 0..messages.len() {
            let mut names = BTreeMap::new();
            collect_names(&messages, index, &mut names);
            messages[index].names = names;
        }
        Self { messages, by_name }
    }
}

fn first_word(line: &'static str) -> &'static str {
    line.split(' ').next().unwrap_or_default()
}

/// The building of a message, line by line.
impl Message {
    fn parse(line: &'static str) -> Self {
        let flags: Vec<&str> = line.split(' ').skip(1).collect();
        Self {
            name: first_word(line),
            is_kind: flags.contains(&"kind"),
            atomic: flags.contains(&"atomic"),
            fields: Vec::new(),
            names: BTreeMap::new(),
            described: 0,
        }
    }

    fn add(&mut self, line: &'static str, by_name: &BTreeMap<&'static str, usize>) {
        let mut words = line.split_whitespace();
        let number = words.next().expect("a field has a number");
        let name = words.next().expect("a field has a name");
        if number == "-" {
            let known = self.fields.iter().position(|field| field.name == name);
            self.described = known.expect("the overlay describes fields that exist");
        } else {
            let number = number.parse().expect("a field's number");
            let kind = words.next().expect("a field has a type");
            self.described = self.fields.len();
            self.fields.push(Field::parse(number, name, kind, by_name));
        }
        let field = &mut self.fields[self.described];
        words.for_each(|flag| field.set_flag(flag));
    }

    fn document(&mut self, text: &str) {
        let field = &mut self.fields[self.described];
        let documentation = field.documentation.get_or_insert_default();
        if !documentation.is_empty() {
            documentation.push(' ');
        }
        documentation.push_str(text);
    }
}

fn collect_names(messages: &[Message], index: usize, names: &mut BTreeMap<&'static str, (usize, usize)>) {
    for (position, field) in messages[index].fields.iter().enumerate() {
        match (field.shape, field.kind) {
            (Shape::Inline, FieldType::Message(inner)) => collect_names(messages, inner, names),
            _ => drop(names.insert(field.name, (index, position))),
        }
    }
}

impl Field {
    fn parse(
        number: u64,
        name: &'static str,
        kind: &'static str,
        by_name: &BTreeMap<&'static str, usize>,
    ) -> Self {
        let (shape, rest) = shape(kind, name);
        Self {
            number,
            name,
            shape,
            kind: field_type(rest, by_name),
            presence: Presence::OmitEmpty,
            list: ListKind::Atomic,
            patch: ListKind::Atomic,
            atomic: false,
            profile: None,
            gate: None,
            documentation: None,
        }
    }

    fn set_flag(&mut self, flag: &'static str) {
        match flag.split_once('=') {
            None if flag == "always" => self.presence = Presence::Always,
            None if flag == "omitzero" => self.presence = Presence::OmitZero,
            None if flag == "atomic" => self.atomic = true,
            None if flag == "set" => self.list = ListKind::Set,
            Some(("map", keys)) => self.list = ListKind::Map(keys_of(keys)),
            Some(("merge", "")) => self.patch = ListKind::Set,
            Some(("merge", key)) => self.patch = ListKind::Map(keys_of(key)),
            Some(("profile", "pulselet")) => self.profile = Some(Profile::Pulselet),
            Some(("gate", gate)) => self.gate = Some(gate),
            _ => unreachable!("the table has an unknown flag: {flag}"),
        }
    }

    /// Whether a profile has the field.
    pub fn exists_in(&self, profile: Profile) -> bool {
        self.profile.is_none_or(|only| only == profile)
    }

    /// The message that the field, or each of its values, is.
    pub fn message(&self) -> Option<&'static Message> {
        match self.kind {
            FieldType::Message(index) => SCHEMA.messages.get(index),
            FieldType::Text
            | FieldType::Bool
            | FieldType::Int32
            | FieldType::Int64
            | FieldType::Double
            | FieldType::Bytes
            | FieldType::Time
            | FieldType::MicroTime
            | FieldType::Quantity
            | FieldType::IntOrString
            | FieldType::Json
            | FieldType::Texts => None,
        }
    }
}

/// The table is read once and lives as long as the process.
fn keys_of(keys: &'static str) -> &'static [&'static str] {
    let keys: Vec<&'static str> = keys.split(',').collect();
    Box::leak(keys.into_boxed_slice())
}

fn shape(written: &'static str, name: &str) -> (Shape, &'static str) {
    if name == "." {
        return (Shape::Inline, written);
    }
    let prefixes = [("[]", Shape::List), ("{}", Shape::Map), ("*", Shape::Optional)];
    for (prefix, shape) in prefixes {
        if let Some(rest) = written.strip_prefix(prefix) {
            // A list of pointers is a list.
            return (shape, rest.trim_start_matches('*'));
        }
    }
    (Shape::One, written)
}

fn field_type(name: &str, by_name: &BTreeMap<&str, usize>) -> FieldType {
    match name {
        "string" => FieldType::Text,
        "bool" => FieldType::Bool,
        "int32" => FieldType::Int32,
        "int64" => FieldType::Int64,
        "float64" => FieldType::Double,
        "bytes" => FieldType::Bytes,
        "time" => FieldType::Time,
        "microtime" => FieldType::MicroTime,
        "quantity" => FieldType::Quantity,
        "intorstring" => FieldType::IntOrString,
        "json" => FieldType::Json,
        "texts" => FieldType::Texts,
        _ => FieldType::Message(*by_name.get(name).unwrap_or_else(|| {
            unreachable!("the table names a type that it does not have: {name}");
        })),
    }
}

impl Message {
    /// The message of a kind; `None` if the table does not have it.
    pub fn find(group: &str, kind: &str) -> Option<&'static Self> {
        let package = match group.split('.').next() {
            None | Some("") => "core",
            Some(package) => package,
        };
        Self::named(&format!("{package}.{kind}"))
    }

    /// All messages of the table.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SCHEMA.messages.iter()
    }

    /// The message of a name such as `core.PodSpec`.
    pub fn named(name: &str) -> Option<&'static Self> {
        SCHEMA.by_name.get(name).map(|index| &SCHEMA.messages[*index])
    }

    /// The fields of the message and of its inline messages.
    pub fn all_fields(&'static self) -> impl Iterator<Item = &'static Field> {
        let places = self.names.values();
        places.map(|(message, field)| &SCHEMA.messages[*message].fields[*field])
    }

    /// The field with a name in JSON, even if it is that of an inline message.
    pub fn field(&'static self, name: &str) -> Option<&'static Field> {
        let (message, field) = self.names.get(name)?;
        SCHEMA.messages[*message].fields.get(*field)
    }
}

/// What is at a path of names from the root, in which lists have no step and maps one for each of their keys.
#[derive(Debug, Clone, Copy)]
pub enum FieldPlace {
    Message(&'static Message),
    Field(&'static Field),
    /// The table does not know it.
    Unknown,
}

impl FieldPlace {
    /// What is one step further.
    #[must_use]
    pub fn below(self, step: &str) -> Self {
        let (message, is_map) = match self {
            Self::Message(message) => (Some(message), false),
            Self::Field(field) => (field.message(), field.shape == Shape::Map),
            Self::Unknown => (None, false),
        };
        match message {
            Some(message) if is_map => Self::Message(message),
            Some(message) => message.field(step).map_or(Self::Unknown, Self::Field),
            None => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_closed_and_has_numbers_once() {
        assert!(SCHEMA.messages.len() > 400, "{}", SCHEMA.messages.len());
        for message in &SCHEMA.messages {
            let mut numbers: Vec<u64> = message.fields.iter().map(|field| field.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), message.fields.len(), "{}", message.name);
        }
    }

    #[test]
    fn paths_lead_through_inline_messages_lists_and_maps() {
        let at = |group: &str, kind: &str, path: &[&str]| {
            let root = FieldPlace::Message(Message::find(group, kind).unwrap());
            path.iter().fold(root, |place, step| place.below(step))
        };
        let list = |path: &[&str]| match at("", "Pod", path) {
            FieldPlace::Field(field) => field.list,
            FieldPlace::Message(_) | FieldPlace::Unknown => panic!("{path:?} leads nowhere"),
        };
        assert_eq!(list(&["spec", "containers"]), ListKind::Map(&["name"]));
        assert_eq!(
            list(&["spec", "containers", "ports"]),
            ListKind::Map(&["containerPort", "protocol"])
        );
        assert_eq!(
            list(&["spec", "ephemeralContainers", "env"]),
            ListKind::Map(&["name"])
        );
        assert_eq!(list(&["metadata", "finalizers"]), ListKind::Set);
        assert!(matches!(
            at("", "Pod", &["metadata", "labels", "x"]),
            FieldPlace::Unknown
        ));
        let deep = ["spec", "template", "spec", "volumes", "hostPath"];
        assert!(matches!(at("apps", "Deployment", &deep), FieldPlace::Field(_)));
    }
}
