//! A world for the engine, on a virtual clock.
//!
//! - [`scenario`] says how containers behave and what happens to their pod, [`faults`] what goes wrong around the agent;
//! - [`simulation`] plays an agent that drives the engine's pod through that world, step by step;
//! - [`oracle`] holds every step to the rules, [`case`] makes random pods and worlds, [`trial`] brings them together;
//! - [`timeline`] tells the story: as text, as a drawing, as a page.
//!
//! The engine under test is the one that runs on a node: nothing of it is replaced or mocked. A simulation reads no
//! clock and no files, starts no threads, and is the same each time it is run.

pub mod case;
pub mod faults;
pub mod oracle;
pub mod scenario;
pub mod simulation;
pub mod timeline;
pub mod trial;
mod world;

pub use scenario::{Scenario, ScenarioError};
pub use simulation::{End, Setup, Simulation};
