//! What outlives an agent: its directory, the store in it, the history of ends, the pods that are stopped, the
//! objects that were handed over, and the time line that goes on.

pub(crate) mod clock;
pub(crate) mod handed_objects;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod stopped;
pub(crate) mod store;
