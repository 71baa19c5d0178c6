//! The Kubernetes release that all parts are like.

/// Its minor version; clients compare it with their own.
pub const KUBERNETES_MINOR: &str = "36";

/// The release, with our own behind it, as the API's version and a node's `kubeletVersion` say it.
pub const KUBERNETES_VERSION: &str = concat!("v1.36.4+pulselet-", env!("CARGO_PKG_VERSION"));
