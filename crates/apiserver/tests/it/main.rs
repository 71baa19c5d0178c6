//! What the server promises, from its store up to real clients.

mod store;
