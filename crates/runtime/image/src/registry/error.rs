//! What can go wrong with a registry, and whether trying again helps.

use reqwest::StatusCode;

use super::MAX_REDIRECTS;
use crate::digest::Digest;

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot prepare a connection to {registry}: {source}")]
    Prepare {
        registry: String,
        source: reqwest::Error,
    },
    #[error("{registry} is not the address of a registry")]
    Address { registry: String },
    #[error("cannot reach {registry}: {}", innermost(source))]
    Send {
        registry: String,
        source: reqwest::Error,
    },
    #[error("the connection to {registry} broke: {}", innermost(source))]
    Read {
        registry: String,
        source: reqwest::Error,
    },
    #[error("{registry} has no {what}")]
    NotFound { registry: String, what: String },
    #[error("{registry} does not let us have {repository}: {message}")]
    Denied {
        registry: String,
        repository: String,
        message: String,
    },
    #[error("{registry} answered {status}: {message}")]
    Status {
        registry: String,
        status: StatusCode,
        message: String,
    },
    #[error("{registry} asks for credentials in a way that is not understood")]
    Challenge { registry: String },
    #[error("the token service of {registry} sent no token")]
    Token { registry: String },
    #[error(
        "{registry} names a token service that is neither on its own host nor reached over https: {realm}"
    )]
    Realm { registry: String, realm: String },
    #[error("the token service of {registry} redirects to another host, which gets no credentials")]
    TokenRedirect { registry: String },
    #[error("{registry} redirects more than {MAX_REDIRECTS} times")]
    TooManyRedirects { registry: String },
    #[error("{registry} sent more than {limit} bytes")]
    TooLarge { registry: String, limit: u64 },
    #[error("{registry} sent a manifest with the digest {actual} for {expected}")]
    ManifestCorrupt {
        registry: String,
        expected: Digest,
        actual: Digest,
    },
}

impl RegistryError {
    /// Whether the same may work a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Send { source, .. } => !source.is_builder(),
            Self::Read { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Prepare { .. }
            | Self::Address { .. }
            | Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Challenge { .. }
            | Self::Token { .. }
            | Self::Realm { .. }
            | Self::TokenRedirect { .. }
            | Self::TooManyRedirects { .. }
            | Self::TooLarge { .. }
            | Self::ManifestCorrupt { .. } => false,
        }
    }
}

/// What is behind the general words of the http library.
fn innermost(error: &reqwest::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
