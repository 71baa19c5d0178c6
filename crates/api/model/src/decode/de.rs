//! Reading a tree strictly into Rust types.
//!
//! What upstream's strict decoding demands holds here: unknown fields, duplicate keys and wrong types are
//! errors. What Go's decoding tolerates holds too: `null` stands for the zero value everywhere. An error knows
//! the path and the position of what it complains about.

use std::fmt::{self, Display};

use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    Visitor,
};

use super::tree::{Key, Node, Position, Value};
use super::{FieldRules, suggest};

/// What is wrong, found on the way down, placed on the way up.
#[derive(Debug)]
pub(super) struct TreeError {
    pub(super) message: String,
    pub(super) hint: Option<String>,
    pub(super) at: Option<Position>,
    /// Field names and indices, innermost first.
    segments: Vec<String>,
}

impl TreeError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            at: None,
            segments: Vec::new(),
        }
    }

    fn place(mut self, at: Position) -> Self {
        self.at.get_or_insert(at);
        self
    }

    fn within(mut self, segment: String) -> Self {
        self.segments.push(segment);
        self
    }

    /// The path of the field, as upstream writes it.
    pub(super) fn path(&self) -> String {
        let mut path = String::new();
        for segment in self.segments.iter().rev() {
            if !path.is_empty() && !segment.starts_with('[') {
                path.push('.');
            }
            path.push_str(segment);
        }
        path
    }
}

impl Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TreeError {}

impl de::Error for TreeError {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = readable(expected);
        let mut error = Self::new(format!("wrong type: found {unexpected}, expected {expected}"));
        let unquoted = matches!(
            unexpected,
            Unexpected::Bool(_) | Unexpected::Signed(_) | Unexpected::Unsigned(_) | Unexpected::Float(_)
        );
        if expected == "a string" && unquoted {
            error.hint = Some("put the value in quotes".to_owned());
        }
        error
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!(
            "wrong value: found {unexpected}, expected {}",
            readable(expected)
        ))
    }
}

/// serde names Rust types; a manifest's author knows other names.
fn readable(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "i32" => "a 32-bit integer".to_owned(),
        "i64" => "an integer".to_owned(),
        "IntOrString" => "an integer or a string".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        _ => match expected.strip_prefix("struct ") {
            Some(name) => format!("an object ({name})"),
            None => expected,
        },
    }
}

#[derive(Clone, Copy)]
pub(super) struct TreeDeserializer<'a> {
    node: &'a Node,
    rules: FieldRules,
}

impl<'a> TreeDeserializer<'a> {
    pub(super) const fn new(node: &'a Node, rules: FieldRules) -> Self {
        Self { node, rules }
    }

    fn mapping<'de, V: Visitor<'de>>(
        self,
        entries: &'a [(Key, Node)],
        known: Option<(&'static str, &'static [&'static str])>,
        visitor: V,
    ) -> Result<V::Value, TreeError> {
        if let Some((key, earlier)) = duplicate(entries) {
            return Err(TreeError::new(format!(
                "duplicate field {:?}; it is also on line {}",
                key.text, earlier.line
            ))
            .place(key.at)
            .within(key.text.clone()));
        }
        visitor.visit_map(Entries {
            rest: entries.iter(),
            value: None,
            known,
            rules: self.rules,
        })
    }

    fn sequence<'de, V: Visitor<'de>>(self, items: &'a [Node], visitor: V) -> Result<V::Value, TreeError> {
        visitor.visit_seq(Items {
            rest: items.iter().enumerate(),
            rules: self.rules,
        })
    }

    fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(text) => visit_number(text, visitor),
            Value::String(text) => visitor.visit_str(text),
            Value::Sequence(items) => self.sequence(items, visitor),
            Value::Mapping(entries) => self.mapping(entries, None, visitor),
        }
        .map_err(|error| error.place(self.node.at))
    }

    fn is_null(self) -> bool {
        matches!(self.node.value, Value::Null)
    }
}

/// The second of two equal keys, and where the first one is.
fn duplicate(entries: &[(Key, Node)]) -> Option<(&Key, Position)> {
    let mut seen = std::collections::BTreeMap::new();
    entries.iter().find_map(|(key, _)| {
        seen.insert(key.text.as_str(), key.at)
            .map(|earlier| (key, earlier))
    })
}

fn visit_number<'de, V: Visitor<'de>>(text: &str, visitor: V) -> Result<V::Value, TreeError> {
    if let Ok(value) = text.parse::<i64>() {
        return visitor.visit_i64(value);
    }
    if let Ok(value) = text.parse::<u64>() {
        return visitor.visit_u64(value);
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => visitor.visit_f64(value),
        _ => Err(TreeError::new(format!("the number {text} is too large"))),
    }
}

/// `null` is the zero value; anything else is what it is.
macro_rules! null_is {
    ($($method:ident => $visit:ident($zero:expr);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
            if self.is_null() {
                return visitor.$visit($zero).map_err(|error: TreeError| error.place(self.node.at));
            }
            self.visit(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for TreeDeserializer<'_> {
    type Error = TreeError;

    null_is! {
        deserialize_bool => visit_bool(false);
        deserialize_i8 => visit_i64(0);
        deserialize_i16 => visit_i64(0);
        deserialize_i32 => visit_i64(0);
        deserialize_i64 => visit_i64(0);
        deserialize_u8 => visit_i64(0);
        deserialize_u16 => visit_i64(0);
        deserialize_u32 => visit_i64(0);
        deserialize_u64 => visit_i64(0);
        deserialize_f32 => visit_f64(0.0);
        deserialize_f64 => visit_f64(0.0);
        deserialize_str => visit_str("");
        deserialize_string => visit_str("");
        deserialize_seq => visit_seq(NoItems);
        deserialize_map => visit_map(NoEntries);
    }

    serde::forward_to_deserialize_any! {
        char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
        self.visit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
        if self.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TreeError> {
        if name != "Quantity" {
            return visitor.visit_newtype_struct(self);
        }
        let text = match &self.node.value {
            Value::Null => "0",
            Value::Number(text) => text,
            Value::String(text) => text,
            Value::Bool(_) | Value::Sequence(_) | Value::Mapping(_) => {
                let message = format!("wrong type: found {}, expected a quantity", self.node.kind());
                return Err(TreeError::new(message).place(self.node.at));
            }
        };
        let amount = crate::quantity::Amount::parse(text)
            .map_err(|error| TreeError::new(error.to_string()).place(self.node.at))?;
        visitor.visit_newtype_struct(amount.to_string().into_deserializer())
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TreeError> {
        match &self.node.value {
            Value::Null => visitor.visit_map(NoEntries),
            Value::Mapping(entries) => self.mapping(entries, Some((name, fields)), visitor),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Sequence(_) => {
                Err(TreeError::new(format!(
                    "wrong type: found {}, expected an object ({name})",
                    self.node.kind()
                )))
            }
        }
        .map_err(|error| error.place(self.node.at))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
        visitor.visit_unit()
    }
}

struct Entries<'a> {
    rest: std::slice::Iter<'a, (Key, Node)>,
    value: Option<&'a (Key, Node)>,
    known: Option<(&'static str, &'static [&'static str])>,
    rules: FieldRules,
}

impl Entries<'_> {
    fn check_known(&self, key: &Key) -> Result<(), TreeError> {
        let Some((name, fields)) = self.known else {
            return Ok(());
        };
        let allowed = |field: &str| self.rules.allows(name, field);
        if fields.contains(&key.text.as_str()) && allowed(&key.text) {
            return Ok(());
        }
        let mut error = TreeError::new(format!("unknown field {:?}", key.text))
            .place(key.at)
            .within(key.text.clone());
        error.hint = self.rules.hint(name, &key.text).map(str::to_owned).or_else(|| {
            suggest::nearest(&key.text, fields.iter().copied().filter(|field| allowed(field)))
                .map(|field| format!("did you mean {field:?}?"))
        });
        Err(error)
    }
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = TreeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TreeError> {
        let Some(entry) = self.rest.next() else {
            return Ok(None);
        };
        self.check_known(&entry.0)?;
        self.value = Some(entry);
        seed.deserialize(entry.0.text.as_str().into_deserializer())
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TreeError> {
        let (key, node) = self
            .value
            .take()
            .expect("serde asks for a value only after its key");
        seed.deserialize(TreeDeserializer::new(node, self.rules))
            .map_err(|error| error.place(node.at).within(key.text.clone()))
    }
}

struct Items<'a> {
    rest: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    rules: FieldRules,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = TreeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TreeError> {
        let Some((index, node)) = self.rest.next() else {
            return Ok(None);
        };
        seed.deserialize(TreeDeserializer::new(node, self.rules))
            .map(Some)
            .map_err(|error| error.place(node.at).within(format!("[{index}]")))
    }
}

/// What `null` is where a list is expected.
struct NoItems;

impl<'de> SeqAccess<'de> for NoItems {
    type Error = TreeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, _: T) -> Result<Option<T::Value>, TreeError> {
        Ok(None)
    }
}

/// What `null` is where an object is expected.
struct NoEntries;

impl<'de> MapAccess<'de> for NoEntries {
    type Error = TreeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, _: K) -> Result<Option<K::Value>, TreeError> {
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, _: V) -> Result<V::Value, TreeError> {
        Err(TreeError::new("an object without entries has no values"))
    }
}
