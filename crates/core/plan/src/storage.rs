//! How much of the node's disk a container may take.

use pulselet_model::openapi::api::core::v1::ResourceRequirements;
use pulselet_model::quantity::Amount;

/// The name of the resource.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
const NANOS: i128 = 1_000_000_000;

/// `limits.ephemeral-storage` of a container: its own layer and its logs, and with those of the pod's other containers
/// also the volumes on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageLimit {
    /// As the pod writes it.
    pub text: Box<str>,
    pub bytes: u64,
}

impl StorageLimit {
    /// `None` if the container may take all there is.
    pub(crate) fn read(resources: &ResourceRequirements) -> Option<Self> {
        let quantity = resources.limits.as_ref()?.get(EPHEMERAL_STORAGE)?;
        let amount = Amount::parse(&quantity.0).ok()?;
        Some(Self {
            text: quantity.0.as_str().into(),
            bytes: u64::try_from(amount.nanos() / NANOS).ok()?,
        })
    }
}
