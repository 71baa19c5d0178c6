//! Pods as a web page: those of the local node or of a namespace at an API, what happens to them as it happens, their logs
//! and manifests.
//!
//! [`Dashboard::start`] serves the page on a listener of the caller's. It is a client of the local agent's socket like the
//! command line, or of an API like `kubectl`, in a process of its own: an agent that ends leaves the page there, and the
//! next one is followed.
//!
//! Where things are: `access` says who may ask, `routes` what is answered, `source` whose pods they are. `agent_source` follows
//! the agent; `api_source` follows an API, whose objects become event lines in `api_lines` and `api_status`. `feed` keeps what
//! they tell and `sse` tells browsers, `end_story` puts the end of a container in words, `logs` and `api_logs` follow a log,
//! `manifest` and `what_if` explain a pod and a change of it. The page itself is in `assets`: plain files, embedded in the binary.
//!
//! What always holds:
//! - nobody is answered who has not come by the one-time secret, and no page of another origin can ask;
//! - the page loads nothing from anywhere else, and runs no script that is not one of its files;
//! - what a container wrote reaches the page as text, never as markup;
//! - nothing here changes a pod.

mod access;
mod agent_source;
mod api_lines;
mod api_logs;
mod api_source;
mod api_status;
mod assets;
mod end_story;
mod feed;
mod logs;
mod manifest;
mod routes;
mod server;
mod source;
mod sse;
mod what_if;

pub use server::{Dashboard, DashboardStartError};
pub use source::DashboardSource;
