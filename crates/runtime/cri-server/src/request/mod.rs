//! What a client asks for, in the runtime's words. What makes no sense, or cannot be done, is refused by its name before
//! anything is made.

pub(crate) mod container;
pub(crate) mod namespaces;
pub(crate) mod resources;
pub(crate) mod sandbox;
pub(crate) mod security;

use pulselet_cri_wire::v1;

use crate::refusal::RequestError;

/// A user or group; `None` if none is given.
fn id(field: &'static str, value: Option<&v1::Int64Value>) -> Result<Option<u32>, RequestError> {
    value.map(|value| number(field, value.value)).transpose()
}

fn number(field: &'static str, value: i64) -> Result<u32, RequestError> {
    u32::try_from(value)
        .map_err(|_| RequestError::invalid(field, format!("{value} is not a user or group of Linux")))
}

/// Refuses options that only a machine with SELinux could follow.
fn refuse_selinux(options: Option<&v1::SeLinuxOption>) -> Result<(), RequestError> {
    match options {
        Some(options) if *options != v1::SeLinuxOption::default() => Err(RequestError::Unsupported {
            field: "selinux_options",
            hint: "leave seLinuxOptions out of the pod",
        }),
        Some(_) | None => Ok(()),
    }
}
