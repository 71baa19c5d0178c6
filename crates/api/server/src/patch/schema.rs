//! How lists and maps inside objects are merged: by key, as sets, or as a whole.
//!
//! Both kinds of patch that know about fields ask here: strategic merge patch and server-side apply. The answers are in
//! the table of fields. What it does not know is replaced as a whole.

use crate::registry::resource::ResourceKind;
use pulselet_schema::{Field, FieldPlace, ListKind, Message};

/// The field that a place is; `None` if it is none.
const fn field(place: FieldPlace) -> Option<&'static Field> {
    match place {
        FieldPlace::Field(field) => Some(field),
        FieldPlace::Message(_) | FieldPlace::Unknown => None,
    }
}

/// Objects of a kind as a whole.
pub(crate) fn root(kind: ResourceKind) -> FieldPlace {
    let group = kind.storage().group_version.group();
    Message::find(group, kind.info().kind).map_or(FieldPlace::Unknown, FieldPlace::Message)
}

fn place(kind: ResourceKind, path: &[String]) -> FieldPlace {
    path.iter().fold(root(kind), |place, step| place.below(step))
}

/// The kind of the list at a place, to server-side apply.
pub(crate) fn list_kind(place: FieldPlace) -> ListKind {
    field(place).map_or(ListKind::Atomic, |field| field.list)
}

/// The kind of the list at a path, to strategic merge patches: they know one key where apply may know several.
pub(crate) fn patch_list_kind(kind: ResourceKind, path: &[String]) -> ListKind {
    field(place(kind, path)).map_or(ListKind::Atomic, |field| field.patch)
}

/// Whether the object at a place is owned as a whole, not field by field.
pub(crate) fn is_atomic_map(place: FieldPlace) -> bool {
    match place {
        FieldPlace::Field(field) => field.atomic || field.message().is_some_and(|message| message.atomic),
        FieldPlace::Message(message) => message.atomic,
        FieldPlace::Unknown => false,
    }
}

/// What a key field of a list is when an item leaves it out.
pub(crate) fn key_default(field: &str) -> Option<&'static str> {
    match field {
        "protocol" => Some("TCP"),
        "whenUnsatisfiable" => Some("DoNotSchedule"),
        _ => None,
    }
}
