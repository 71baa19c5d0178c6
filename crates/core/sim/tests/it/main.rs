//! The engine in the simulator: named scenarios, random ones, and what holds for all of them.

mod gates;
mod pressure;
mod promises;
mod regressions;
mod scenarios;
mod seeds;
mod skew;
mod stage;
