//! What fuzzers call, and nobody else: these functions take what a probed program answers.

use crate::{grpc, http};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[("grpc_answer", read_grpc), ("http_answer", read_http)];

/// Reads an HTTP answer; the pieces it arrives in do not change what it says. The first byte says how long they are.
pub fn read_http(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else {
        return;
    };
    let whole = http::fuzz_answer(bytes, bytes.len().max(1));
    let pieces = http::fuzz_answer(bytes, usize::from(piece).max(1));
    // How an answer is malformed may be said by less of it.
    assert!(whole == pieces || (whole.is_none() && pieces.is_none()));
}

/// Makes a gRPC call to a server that sends these bytes and leaves.
pub fn read_grpc(bytes: &[u8]) {
    grpc::fuzz_answer(bytes);
}
