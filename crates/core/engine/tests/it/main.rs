//! The engine against its driver's protocol and against recorded answers of the upstream worker.

mod pod;
mod shutdown;
mod transitions;
mod worker_vectors;
