//! The endpoint over real TLS, spoken to as kubectl and API servers do.

mod access;
mod client;
mod commands;
mod logs;
mod ports;
mod spdy;
mod websocket;
mod world;
