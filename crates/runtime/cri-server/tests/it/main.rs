//! The server as its clients see it, over a real socket, with a scripted runtime behind it.

mod bad_input;
mod calls;
mod world;
