//! The node's https endpoint, as a kubelet serves it: logs, exec, attach, port-forward, pods and metrics.
//!
//! ```no_run
//! # async fn example(node: pulselet_agent::NodeHandle, runtime: std::sync::Arc<dyn pulselet_runtime::Runtime>, ca: String)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use pulselet_node_server::{Options, Tls, serve};
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:10250").await?;
//! let tls = Tls::self_signed(&["node-1"], &[listener.local_addr()?.ip()], ca)?;
//! let server = serve(Options { node, runtime, listener, tls, callers: None })?;
//! println!("the node's endpoint is at {}", server.address());
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | path | answer |
//! |---|---|
//! | `/containerLogs/NAMESPACE/POD/CONTAINER` | the log: `follow`, `previous`, `tailLines`, `sinceSeconds`, `sinceTime`, `timestamps`, `limitBytes`, `stream` |
//! | `/exec/NAMESPACE/POD/CONTAINER` | a command (`command`, once for each word) with `input`, `output`, `error`, `tty` |
//! | `/attach/NAMESPACE/POD/CONTAINER` | the same streams of the container's own process |
//! | `/portForward/NAMESPACE/POD` | connections to the pod's ports |
//! | `/pods` | a `PodList` |
//! | `/healthz`, `/metrics`, ... | what the node has for monitoring |
//!
//! Streams are spoken as WebSocket (`v5.channel.k8s.io` down to `channel.k8s.io`, and SPDY within one for port-forward)
//! or as SPDY/3.1 (`v4.channel.k8s.io` down to `channel.k8s.io`, `portforward.k8s.io`).
//!
//! Clients prove who they are by a certificate of the given authority. Members of `system:masters` and API servers may
//! ask everything. About others, and about those who show a token, the API is asked ([`CallerReview`]): who they are, and
//! whether they may have that part of the node. Without an API, or if it says no, they get 401 or 403, except for `/healthz`.
//!
//! What must always hold: connections, sessions, streams and buffers are bounded; what a client sends never makes the
//! endpoint panic; a client that leaves or vanishes leaves nothing behind, its command included.
//!
//! Left to others: what runs where (`agent`), how a command is run (`runtime`) and connected with its client (`sessions`), the protocols of streams (`streaming`),
//! and who may do what with pods (the API).

mod body;
mod callers;
mod logs;
mod query;
mod routes;
mod server;
mod tls;

pub use callers::{CallerReview, NodeCaller};
pub use server::{NodeServeError, NodeServer, Options, serve};
pub use tls::{ServingCertificate, Tls, TlsError};
