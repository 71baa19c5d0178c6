//! Container images: a content-addressed store with loading, pulling and unpacking.
//!
//! Where to start: [`ImageStore`]. It keeps each layer unpacked, as a directory that an overlay mount takes as it is,
//! named by its content and that of the layers below.
//!
//! What always holds: what comes from outside, archives and registries, is checked against its digests, bounded in every
//! size and count, and visible only when it is complete.
//!
//! What is left to others: mounting, running, and knowing which images are in use.

mod compression;
mod credentials;
mod digest;
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod load;
mod mirror;
mod platform;
mod pull;
mod reference;
mod registry;
mod stage;
mod store;
mod tarball;
mod unpack;

pub use credentials::{Auth, CredentialsError, DockerConfig, HelperError};
pub use digest::{Digest, ParseDigestError};
pub use image::{DocumentError, Image, ImageConfig, MAX_LAYERS};
pub use load::{ArchiveError, LoadError};
pub use mirror::{ParseMirrorError, RegistryMirror};
pub use platform::Platform;
pub use pull::{DownloadError, LayerStep, Progress, PullError, PullEvent};
pub use reference::{ParseReferenceError, Reference};
pub use registry::RegistryError;
pub use stage::LayerError;
pub use store::{
    ImageStore, ImageStoreError, ImageStoreErrorKind, IndexError, Prune, Removed, SHORT_ID_DIGITS,
};
pub use tarball::TarError;
pub use unpack::{Limits, UnpackError};
