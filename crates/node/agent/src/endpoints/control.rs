//! The local door: HTTP and JSON over a unix socket that only its owner may open.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/pods` | [`PodView`]s as a JSON array |
//! | `POST /v1/pods` | a Pod that was admitted; [`Added`] |
//! | `POST /v1/objects` | config maps and secrets that were admitted, for pods that come after them; 202, nothing |
//! | `DELETE /v1/pods/NAMESPACE/NAME?gracePeriodSeconds=N&forget=true` | 202, nothing; stopped until `start` unless it is forgotten |
//! | `POST /v1/pods/NAMESPACE/NAME/start` | [`Added`] |
//! | `POST /v1/pods/NAMESPACE/NAME/restart?container=C` | the number of containers |
//! | `POST /v1/pods/NAMESPACE/NAME/exec?container=C&tty=true&stdin=true&command=A&command=B` | 101, then [`ExecFrame`]s |
//! | `GET /v1/pods/NAMESPACE/NAME/manifest` | the Pod as it was admitted |
//! | `GET /v1/node` | [`NodeView`] |
//! | `GET /v1/usage` | a kubelet's summary of what containers use |
//! | `GET /v1/pods/NAMESPACE/NAME/log?container=C&previous=true` | [`LogPlace`] |
//! | `GET /v1/events/UID` | [`EventRow`]s as a JSON array |
//! | `GET /v1/history?pod=NAMESPACE/NAME&container=C` | event lines, one a line |
//! | `GET /v1/lines` | event lines as they come, one a line |
//!
//! An error is a status of 4xx or 5xx with a [`ControlRefusal`]. Pods are admitted by whoever sends them and checked again
//! for what this node can run.
//!
//! [`PodView`]: crate::PodView
//! [`Added`]: crate::Added
//! [`LogPlace`]: crate::LogPlace
//! [`EventRow`]: crate::EventRow

mod client;
mod exec;
mod server;
mod socket;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pulselet_engine::plan::Settings;
use serde::{Deserialize, Serialize};

pub use client::{ControlClient, ControlClientError, LineStream};
pub use exec::{ExecFrame, ExecInput, ExecSession};
pub(crate) use server::Control;
pub(crate) use socket::bind;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRefusal {
    pub error: String,
}

/// A node as others see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub name: String,
    pub address: String,
    /// What runs its containers, and that one's version.
    pub runtime: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// An API decides over its pods.
    pub joined: bool,
    /// Every feature gate, and whether it is on.
    pub gates: BTreeMap<String, bool>,
    pub settings: Settings,
    /// Why it cannot run pods now; `None` if it can.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// Percent-encodes what stands in a query or a path.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The inverse of [`encode`]; none where it is not the encoding of a text.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// The first value of a query's key.
fn query(query: Option<&str>, key: &str) -> Option<String> {
    queries(query, key).next()?
}

/// All values of a query's key, in order; none in the place of one that is not the encoding of a text.
fn queries<'q>(query: Option<&'q str>, key: &'q str) -> impl Iterator<Item = Option<String>> + 'q {
    let pairs = query.into_iter().flat_map(|query| query.split('&'));
    let pairs = pairs.filter_map(|pair| pair.split_once('='));
    pairs
        .filter(move |(found, _)| *found == key)
        .map(|(_, value)| decode(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_carry_any_text() {
        let text = "a b&c=d/ü%";
        let encoded = format!("x=1&pod={}", encode(text));
        assert_eq!(query(Some(&encoded), "pod").as_deref(), Some(text));
        assert_eq!(query(Some("pod=%zz"), "pod"), None);
        assert_eq!(query(Some("pod=%f"), "pod"), None);
        assert_eq!(query(None, "pod"), None);
    }
}
