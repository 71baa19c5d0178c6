//! What every store promises, in a file and in etcd, and when the power or a member fails.

mod etcd;
mod power_cut;
mod store;
