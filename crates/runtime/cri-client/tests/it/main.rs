//! The runtime against servers: one of the tests' own, for what real ones seldom do, and a real containerd.

mod real;
mod server;
mod wire;
mod world;
