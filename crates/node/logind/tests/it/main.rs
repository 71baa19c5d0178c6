//! A node on a scripted runtime and a logind of the tests, joined by a bus of the tests.

mod bus;
mod daemon;
mod shutdown;
