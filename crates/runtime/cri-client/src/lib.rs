//! A [`Runtime`](pulselet_runtime::Runtime) that drives a CRI server, containerd or CRI-O, over its socket.
//!
//! What always holds:
//! - Only what carries this data directory's label is seen or touched; other clients of the same server, kubelets and
//!   other agents among them, keep what is theirs.
//! - Everything that is needed to adopt a sandbox or a container travels with it as labels and annotations. Beside
//!   them there is one file, the name of the owner.
//! - Every call has a deadline. A call that changes something goes on when its caller has left, up to that deadline.
//! - A server that is away is [`Unavailable`](pulselet_runtime::Error::Unavailable), never "not found": nothing is
//!   concluded about containers that cannot be asked about.
//!
//! Left to others: grace periods and retries (the node), everything below CRI (the server).

mod call;
mod connection;
mod container;
mod events;
mod image;
mod labels;
mod leftover;
mod logs;
mod owner;
mod runtime;
mod sandbox;
mod sandboxes;
mod security;
mod signal;
mod streams;
mod sub_path;
mod table;

use pulselet_cri_wire as wire;

pub use connection::ConnectError;
pub use owner::OwnerError;
pub use runtime::{CriOpenError, CriOptions, CriRuntime, USUAL_SOCKETS};
pub use security::SECURITY;
