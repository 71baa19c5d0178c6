//! The engine against recorded answers of the upstream worker.

mod worker_vectors;
