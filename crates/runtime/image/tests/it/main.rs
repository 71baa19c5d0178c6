//! Tests of the crate through its public interface. Unpacking sets owners and makes whiteouts, so they need root.

#![expect(clippy::unwrap_used, reason = "in a helper, too, a failure is a failed test")]

mod builder;
mod layers;
mod load;
mod mirrors;
mod protocol;
mod pull;
mod recorded;
mod redirects;
mod registry;
mod store;
