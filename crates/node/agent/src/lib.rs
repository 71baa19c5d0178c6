//! The node agent: pods from files or requests, run by a runtime, watched by probes, remembered on disk.
//!
//! [`Node::start`] makes a node and returns a [`NodeHandle`]. Inside, one task (the agent) owns every pod: it feeds the
//! engine with what happens and has the engine's actions carried out by jobs. Around it are a thread that writes the
//! store, a socket for the command line, an endpoint for monitoring, and a watcher of manifests.
//!
//! What always holds:
//! - an agent can die at any instant: the next one goes on with every probe run, deadline and restart count;
//! - a pod's state is on disk before an action that follows from it begins;
//! - every queue, retry and number of tasks has a bound with a name.
//!
//! Left to others: what a manifest means (`plan`), what happens when (`engine`), how a probe is made (`probe`), how a
//! container is run (`runtime`), and every word to a person (`cli`).

mod admission;
mod agent;
mod clock;
mod container;
pub mod control;
mod facts;
mod feed;
mod handle;
mod health;
mod history;
mod http;
mod identity;
mod jobs;
mod layout;
mod lines;
mod log_file;
mod manifests;
mod metrics;
mod node;
mod notify;
mod objects;
mod status;
mod store;
mod termination;
mod usage;

pub use agent::{
    AddError, Added, AdoptError, How, Located, LogError, LogPlace, NoSuchPod, PodView, Shutdown, StreamError,
    UpdateError,
};
pub use facts::NodeFacts;
pub use feed::{Feed, News, PodEvent};
pub use handle::{Gone, NodeHandle, kept_history};
pub use health::Page;
pub use identity::{Origin, pod_name_of, uid_of};
pub use layout::{DataDir, Layout, LayoutError};
pub use lines::{FULL_BACKLOG, GUEST_BACKLOG, LineHub, Lines, PodLine};
pub use log_file::LogFile;
pub use manifests::WatchError;
pub use node::{Node, NodeOptions, StartError};
pub use notify::ServiceManager;
pub use objects::{NoObjects, ObjectSource, SourceError, Token, TokenRequest};
pub use store::{EventRow, StoreError};
