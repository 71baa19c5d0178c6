//! The agent's side of containers, on files alone.

mod power_cut;
