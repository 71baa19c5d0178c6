//! Integration tests of the API model: one binary, one module per subject.

mod vectors;
