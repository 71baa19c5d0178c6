//! What fields the kinds of Kubernetes have: one table, which bodies are checked against, which turns JSON into protobuf
//! and back, and which says how lists are merged by patches.
//!
//! The table is text that `cargo xtask fields` writes from upstream's types. A line without a space at its start names
//! a message; ` kind` behind it means that it may name its kind, and ` atomic` that it is owned as a whole. The lines below are its fields: number in
//! protobuf, name in JSON, type, and flags. The name `.` means that the fields of the type are those of the message
//! itself. A type is preceded by `*` where absent and zero differ, by `[]` for lists and by `{}` for maps from texts.
//!
//! What must always hold: every type that the table names is in it, and messages nest within [`MAX_DEPTH`] of bodies.

pub(crate) mod defaults;
pub(crate) mod strict;

use std::collections::HashMap;
use std::sync::LazyLock;

/// The table, as it was generated.
const TABLE: &str = include_str!("schema/fields.txt");

/// Levels of messages that are followed. Objects have about twenty; a few messages can hold themselves.
pub(crate) const MAX_DEPTH: usize = 64;

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::parse(TABLE));

/// All messages.
#[derive(Debug)]
struct Schema {
    messages: Vec<Message>,
    by_name: HashMap<&'static str, usize>,
}

/// The fields of an object or of a part of one.
#[derive(Debug)]
pub(crate) struct Message {
    /// `core.PodSpec`: the package and the name that upstream gives it.
    pub(crate) name: &'static str,
    /// It is an object with `apiVersion` and `kind`.
    pub(crate) is_kind: bool,
    /// It is owned as a whole, not field by field.
    pub(crate) atomic: bool,
    pub(crate) fields: Vec<Field>,
    /// By their names in JSON, those of inline messages among them: the message and the field.
    names: HashMap<&'static str, (usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct Field {
    /// In protobuf.
    pub(crate) number: u64,
    /// In JSON.
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) kind: FieldType,
    pub(crate) presence: Presence,
    pub(crate) list: ListKind,
    /// How strategic merge patches see the list, if not as a whole.
    pub(crate) patch: ListKind,
    /// The map, or the object, is owned as a whole.
    pub(crate) atomic: bool,
}

/// How often a value is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
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
pub(crate) enum Presence {
    /// Nothing, except for messages.
    OmitEmpty,
    /// Nothing.
    OmitZero,
    /// The zero value.
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldType {
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
pub(crate) enum ListKind {
    /// The new one replaces the old.
    Atomic,
    /// Values, each at most once.
    Set,
    /// Items are the same when these fields are.
    Map(&'static [&'static str]),
}

impl Schema {
    fn parse(table: &'static str) -> Self {
        let headers = table.lines().filter(|line| !line.starts_with(' '));
        let by_name: HashMap<&str, usize> = headers
            .enumerate()
            .map(|(index, line)| (line.split(' ').next().unwrap_or_default(), index))
            .collect();
        let mut messages: Vec<Message> = Vec::new();
        for line in table.lines() {
            let mut words = line.split_whitespace();
            if let Some(message) = messages.last_mut().filter(|_| line.starts_with(' ')) {
                message.fields.push(Field::parse(words, &by_name));
            } else {
                let name = words.next().unwrap_or_default();
                let flags: Vec<&str> = words.collect();
                messages.push(Message {
                    name,
                    is_kind: flags.contains(&"kind"),
                    atomic: flags.contains(&"atomic"),
                    fields: Vec::new(),
                    names: HashMap::new(),
                });
            }
        }
        for index in 0..messages.len() {
            let mut names = HashMap::new();
            collect_names(&messages, index, &mut names);
            messages[index].names = names;
        }
        Self { messages, by_name }
    }
}

fn collect_names(messages: &[Message], index: usize, names: &mut HashMap<&'static str, (usize, usize)>) {
    for (position, field) in messages[index].fields.iter().enumerate() {
        match (field.shape, field.kind) {
            (Shape::Inline, FieldType::Message(inner)) => collect_names(messages, inner, names),
            _ => drop(names.insert(field.name, (index, position))),
        }
    }
}

impl Field {
    fn parse(mut words: impl Iterator<Item = &'static str>, by_name: &HashMap<&str, usize>) -> Self {
        let mut next = || words.next().expect("a field has a number, a name and a type");
        let number = next().parse().expect("a field's number");
        let name = next();
        let (shape, rest) = shape(next(), name);
        let mut field = Self {
            number,
            name,
            shape,
            kind: field_type(rest, by_name),
            presence: Presence::OmitEmpty,
            list: ListKind::Atomic,
            patch: ListKind::Atomic,
            atomic: false,
        };
        for flag in words {
            match flag.split_once('=') {
                None if flag == "always" => field.presence = Presence::Always,
                None if flag == "omitzero" => field.presence = Presence::OmitZero,
                None if flag == "atomic" => field.atomic = true,
                None if flag == "set" => field.list = ListKind::Set,
                Some(("map", keys)) => field.list = ListKind::Map(keys_of(keys)),
                Some(("merge", "")) => field.patch = ListKind::Set,
                Some(("merge", key)) => field.patch = ListKind::Map(keys_of(key)),
                _ => unreachable!("the table has a flag that is not known: {flag}"),
            }
        }
        field
    }

    /// The message that the field, or each of its values, is.
    pub(crate) fn message(&self) -> Option<&'static Message> {
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

fn field_type(name: &str, by_name: &HashMap<&str, usize>) -> FieldType {
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
    pub(crate) fn find(group: &str, kind: &str) -> Option<&'static Self> {
        let package = match group.split('.').next() {
            None | Some("") => "core",
            Some(package) => package,
        };
        Self::named(&format!("{package}.{kind}"))
    }

    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        SCHEMA.by_name.get(name).map(|index| &SCHEMA.messages[*index])
    }

    /// The field with a name in JSON, also if it is that of an inline message.
    pub(crate) fn field(&'static self, name: &str) -> Option<&'static Field> {
        let (message, field) = self.names.get(name)?;
        SCHEMA.messages[*message].fields.get(*field)
    }
}

/// What is at a path of names from the root, in which lists have no step and maps one for each of their keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Message(&'static Message),
    Field(&'static Field),
    /// The table does not know it.
    Unknown,
}

impl Place {
    /// What is one step further.
    pub(crate) fn below(self, step: &str) -> Self {
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
            let root = Place::Message(Message::find(group, kind).unwrap());
            path.iter().fold(root, |place, step| place.below(step))
        };
        let list = |path: &[&str]| match at("", "Pod", path) {
            Place::Field(field) => field.list,
            Place::Message(_) | Place::Unknown => panic!("{path:?} leads nowhere"),
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
            Place::Unknown
        ));
        let deep = ["spec", "template", "spec", "volumes", "hostPath"];
        assert!(matches!(at("apps", "Deployment", &deep), Place::Field(_)));
    }
}
