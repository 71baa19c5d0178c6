//! How lists and maps inside objects are merged: by key, as sets, or as a whole.
//!
//! Both kinds of patch that know about fields ask here: strategic merge patch and server-side apply. The answers are in
//! the table of fields. What it does not know is replaced as a whole.

use crate::registry::resource::ResourceKind;
use crate::schema::{Field, ListKind, Message, Place};

/// The field at a path of names; `None` if the kind has none there.
fn field(kind: ResourceKind, path: &[String]) -> Option<&'static Field> {
    match place(kind, path) {
        Place::Field(field) => Some(field),
        Place::Message(_) | Place::Unknown => None,
    }
}

fn place(kind: ResourceKind, path: &[String]) -> Place {
    let group = kind.storage().group_version.group();
    let steps: Vec<&str> = path.iter().map(String::as_str).collect();
    Message::find(group, kind.info().kind).map_or(Place::Unknown, |message| message.at(&steps))
}

/// The kind of the list at a path, to server-side apply.
pub(crate) fn list_kind(kind: ResourceKind, path: &[String]) -> ListKind {
    field(kind, path).map_or(ListKind::Atomic, |field| field.list)
}

/// The kind of the list at a path, to strategic merge patches: they know one key where apply may know several.
pub(crate) fn patch_list_kind(kind: ResourceKind, path: &[String]) -> ListKind {
    field(kind, path).map_or(ListKind::Atomic, |field| field.patch)
}

/// Whether the object at a path is owned as a whole, not field by field.
pub(crate) fn is_atomic_map(kind: ResourceKind, path: &[String]) -> bool {
    match place(kind, path) {
        Place::Field(field) => field.atomic || field.message().is_some_and(|message| message.atomic),
        Place::Message(message) => message.atomic,
        Place::Unknown => false,
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
