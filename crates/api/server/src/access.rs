//! Who is asking, and what they may do.
//!
//! `authn` finds out who sends a request, and `authz` says whether they may do what they ask for. The certificates
//! that both sides of a connection show come from the server's own authority (`pki`), and `certificates` says which
//! ones pass the handshake.

mod authn;
mod authz;
pub(crate) mod certificates;
pub(crate) mod pki;
mod revocation;

pub use authn::AccessError;
pub(crate) use authn::{Authenticator, Identity, Standing};
pub(crate) use authz::{Access, authorize, authorize_caller, authorize_route};
pub use revocation::RevocationError;

/// The group that may do everything.
pub const ADMIN_GROUP: &str = "system:masters";
/// The group of nodes; their users are this prefix and the node's name.
pub const NODE_GROUP: &str = "system:nodes";
pub const NODE_USER_PREFIX: &str = "system:node:";
const ANONYMOUS: &str = "system:anonymous";
