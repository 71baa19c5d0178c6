//! The process runtime against real processes.

mod adoption;
mod exec;
mod lifecycle;
mod logs;
mod stopping;
mod streams;
mod world;
