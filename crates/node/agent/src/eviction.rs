//! Node-pressure eviction: when the machine runs out of memory, disk, inodes or process ids, pods have to go.
//!
//! `signals` says what there is left, and tests say it themselves. `pressure` turns that into conditions and into what has to
//! be reclaimed, and `rank` says whose turn it is; both are pure. The agent asks them every few seconds, and a job
//! measures the pods and evicts one.
//!
//! What always holds: one pod goes at a time, and the next look comes before the next pod; pods that keep the node
//! itself going stay.

pub(crate) mod pressure;
pub(crate) mod rank;
pub(crate) mod signals;

pub use pressure::PressureConditions;
pub use signals::{Level, MachineSignals, PressureReadings, PressureSignals};
