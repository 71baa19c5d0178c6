//! Who is asking, and what they may do.
//!
//! `authn` finds out who sends a request, and `authz` says whether they may do what they ask for: by fixed rules for
//! administrators and nodes, by roles and bindings for everybody else (`rbac`). `impersonation` lets somebody act for
//! another, and `review` answers clients who ask all this. The certificates that both sides of a connection show come from
//! the server's own authority (`pki`), and `certificates` says which ones pass the handshake; `tokens` makes and checks those
//! of service accounts, and `signing` issues certificates to those who ask.

mod attributes;
mod authn;
mod authz;
pub(crate) mod certificates;
mod impersonation;
pub(crate) mod own_certificate;
pub(crate) mod pki;
mod rbac;
pub(crate) mod review;
mod revocation;
pub(crate) mod signing;
pub(crate) mod tokens;

pub(crate) use attributes::{Attributes, ResourceAttributes};
pub use authn::AccessError;
pub(crate) use authn::{Authenticator, Identity, Standing};
pub(crate) use authz::{Access, Authorizer};
pub(crate) use rbac::{DefaultObjects, GrantLimit, gathered_rules};
pub use revocation::RevocationError;
pub(crate) use signing::signing_request_error;
pub use tokens::KeyError;

/// The group that may do everything.
pub const ADMIN_GROUP: &str = "system:masters";
/// The group of nodes; their users are this prefix and the node's name.
pub const NODE_GROUP: &str = "system:nodes";
pub const NODE_USER_PREFIX: &str = "system:node:";
const ANONYMOUS: &str = "system:anonymous";
