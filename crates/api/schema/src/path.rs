//! Where a field is: the steps from the root of an object to it.

use std::fmt;

use crate::{Message, Shape};

/// A step on the way to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    Field(String),
    Index(usize),
}

/// The place of a field in an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldPath(pub Vec<PathStep>);

impl FieldPath {
    /// The message that the last step of the path is a field of; `None` if the table does not know the way.
    pub fn message(&self, root: &'static Message) -> Option<&'static Message> {
        let (_, parents) = self.0.split_last()?;
        let mut message = root;
        let mut map = None;
        for step in parents {
            let PathStep::Field(name) = step else { continue };
            // The key of a map leads to the same kind of value as any other key.
            if let Some(inner) = map.take() {
                message = inner;
                continue;
            }
            let field = message.field(name)?;
            let inner = field.message()?;
            match field.shape {
                Shape::Map => map = Some(inner),
                Shape::One | Shape::Optional | Shape::List | Shape::Inline => message = inner,
            }
        }
        Some(message)
    }
}

impl fmt::Display for FieldPath {
    /// As Kubernetes writes it: `spec.containers[0].image`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Field(name) if position == 0 => f.write_str(name)?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// The path during a walk: frames on the stack, which cost nothing until a problem needs them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trail<'a> {
    parent: Option<&'a Trail<'a>>,
    step: TrailStep<'a>,
    pub(crate) depth: usize,
}

#[derive(Debug, Clone, Copy)]
enum TrailStep<'a> {
    Root,
    Field(&'a str),
    Index(usize),
}

impl<'a> Trail<'a> {
    pub(crate) const ROOT: Self = Self {
        parent: None,
        step: TrailStep::Root,
        depth: 0,
    };

    pub(crate) const fn field(&'a self, name: &'a str) -> Self {
        self.below(TrailStep::Field(name))
    }

    pub(crate) const fn index(&'a self, index: usize) -> Self {
        self.below(TrailStep::Index(index))
    }

    const fn below(&'a self, step: TrailStep<'a>) -> Self {
        Self {
            parent: Some(self),
            step,
            depth: self.depth + 1,
        }
    }

    pub(crate) fn path(&self) -> FieldPath {
        let mut steps = Vec::with_capacity(self.depth);
        let mut frame = Some(self);
        while let Some(trail) = frame {
            match trail.step {
                TrailStep::Root => {}
                TrailStep::Field(name) => steps.push(PathStep::Field(name.to_owned())),
                TrailStep::Index(index) => steps.push(PathStep::Index(index)),
            }
            frame = trail.parent;
        }
        steps.reverse();
        FieldPath(steps)
    }
}
