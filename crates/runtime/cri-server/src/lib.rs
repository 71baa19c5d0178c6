//! A CRI v1 server over any [`Runtime`](pulselet_runtime::Runtime): the containers of Pulselet under a kubelet.
//!
//! Where to start: [`CriServer::start`]. It listens on a socket for a kubelet's gRPC calls and on a TCP port of this
//! machine for the streams of exec, attach and port-forward.
//!
//! | module | what it is for |
//! |---|---|
//! | `server`, `connections` | the socket, its clients, and the end of it |
//! | `runtime_service`, `image_service` | CRI's two services, one short function for each call |
//! | `sandboxes`, `containers`, `images`, `exec` | what the calls do |
//! | `request` | what a call asks for, in the runtime's words; what makes no sense is refused here |
//! | `answer` | what a runtime says, in CRI's words |
//! | `stored` | what CRI wants to hear again and a runtime does not know; it travels with the runtime's own objects |
//! | `stats`, `metrics`, `events` | what is used, and what has changed |
//! | `streams` | the addresses of exec, attach and port-forward, each good for one use |
//!
//! What always holds:
//! - The server keeps no state of its own but for the addresses of streams that nobody has used yet. What there is, is
//!   what the runtime says: a server that was killed is replaced by another, and no container notices.
//! - A call that was asked for twice is answered the same way twice: what is gone is stopped and removed.
//! - A field that is neither done nor without meaning here is refused by its name. None is ignored.
//! - A call that makes or ends something goes on when its caller has left.
//! - What a client sends is bounded and never makes the server panic.
//!
//! Left to others: how containers run, where images come from and how pods are connected (a runtime), and every policy (the
//! kubelet).

mod answer;
mod connections;
mod containers;
mod events;
mod exec;
pub mod fuzzing;
mod image_service;
mod images;
mod metrics;
mod refusal;
mod request;
mod runtime_service;
mod sandboxes;
mod server;
mod service;
mod stats;
mod stored;
mod streams;

pub use server::{CriServeError, CriServer, CriServerOptions};
