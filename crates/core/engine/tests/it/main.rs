//! The engine against its driver's protocol and against recorded answers of the upstream worker.

mod driven;
mod image_change;
mod pod;
mod restart_all;
mod shutdown;
mod transitions;
mod worker_vectors;
