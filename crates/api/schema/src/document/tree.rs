//! A document as a tree that remembers where everything stood.
//!
//! Both parsers build this tree, so that YAML and JSON get the same errors at the same places. Keys keep their order and
//! their duplicates.

use std::fmt;

use crate::{FieldPath, PathStep};

/// A place in the input, counted from one. Columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// The number as it is written in JSON.
    Number(Box<str>),
    String(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) at: Position,
    pub(crate) text: String,
}

impl Node {
    pub(crate) fn get(&self, field: &str) -> Option<&Node> {
        match &self.value {
            Value::Mapping(entries) => entries
                .iter()
                .find(|(key, _)| key.text == field)
                .map(|(_, node)| node),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Sequence(_) => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    /// Finds where a field path such as `spec.containers[0].image` stands, or the nearest parent that exists.
    pub(crate) fn locate(&self, path: &str) -> Position {
        let mut node = self;
        let mut at = self.at;
        for segment in segments(path) {
            let next = match &node.value {
                Value::Mapping(entries) => entries
                    .iter()
                    .find(|(key, _)| key.text == segment)
                    .map(|(key, child)| (key.at, child)),
                Value::Sequence(items) => segment
                    .parse()
                    .ok()
                    .and_then(|index: usize| items.get(index))
                    .map(|child| (child.at, child)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
            };
            let Some((place, child)) = next else { break };
            at = place;
            node = child;
        }
        at
    }
}

impl Node {
    /// Finds the key or item at a path, or its nearest parent that exists.
    pub(crate) fn locate_path(&self, path: &FieldPath) -> Position {
        self.locate_keys(path).last().copied().unwrap_or_else(|| {
            let mut parent = path.clone();
            parent.0.pop();
            if path.0.is_empty() {
                self.at
            } else {
                self.locate_path(&parent)
            }
        })
    }

    /// The places of all keys with this path: several if a key is duplicated.
    pub(crate) fn locate_keys(&self, path: &FieldPath) -> Vec<Position> {
        let mut found = vec![(self.at, self)];
        for step in &path.0 {
            found = found
                .into_iter()
                .flat_map(|(_, node)| node.children(step))
                .collect();
        }
        found.into_iter().map(|(at, _)| at).collect()
    }

    fn children(&self, step: &PathStep) -> Vec<(Position, &Self)> {
        match (&self.value, step) {
            (Value::Mapping(entries), PathStep::Field(name)) => {
                let same = entries.iter().filter(|(key, _)| key.text == *name);
                same.map(|(key, node)| (key.at, node)).collect()
            }
            (Value::Sequence(items), PathStep::Index(index)) => items
                .get(*index)
                .map(|node| (node.at, node))
                .into_iter()
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Splits `a.b[0].c[x.y/z]` into a, b, 0, c, x.y/z.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        let (name, tail) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']').unwrap_or((inner, "")),
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        rest = tail;
        Some(name)
    })
}
