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

/// Refuses options that only a machine with `SELinux` could follow. The lowest level without categories keeps nothing from
/// anything.
fn refuse_selinux(options: Option<&v1::SeLinuxOption>) -> Result<(), RequestError> {
    let Some(options) = options else {
        return Ok(());
    };
    let v1::SeLinuxOption {
        user,
        role,
        r#type,
        level,
    } = options;
    let is_lowest = matches!(level.as_str(), "" | "s0");
    let is_plain = is_lowest && user.is_empty() && role.is_empty() && r#type.is_empty();
    if !is_plain {
        return Err(RequestError::Unsupported {
            field: "selinux_options",
            hint: "leave seLinuxOptions out of the pod",
        });
    }
    Ok(())
}
