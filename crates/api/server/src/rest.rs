//! The REST protocol: a request from its headers to its answer.
//!
//! Start at `handler`, which takes a request through its steps. `route` finds what a path names, `query` and `body`
//! read what the client sends, `accept` finds the form of the answer, `render` and `table` give objects that form,
//! and `answer` wraps it. What fails becomes a `status`.

pub(crate) mod accept;
mod answer;
pub(crate) mod body;
pub(crate) mod handler;
mod health;
mod large_bodies;
pub(crate) mod query;
pub(crate) mod render;
pub(crate) mod room;
pub(crate) mod route;
pub(crate) mod status;
pub(crate) mod table;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// An error while a body is read; nobody can do anything about it but stop.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request or of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;
