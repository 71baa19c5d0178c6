//! What the node says unasked: changes to whoever joins it to an API, event lines to people, its state to systemd.

pub(crate) mod feed;
pub(crate) mod lines;
pub(crate) mod notify;
