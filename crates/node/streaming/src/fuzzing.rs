//! What fuzzers call, and nobody else: these functions take what the other end of a connection sends.

use std::collections::VecDeque;

use crate::protocol::StreamProtocol;
use crate::spdy::Spdy;
use crate::websocket::{Channels, Closing, Coding, Tunnel};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[("spdy_frames", read_spdy), ("websocket_frames", read_websocket)];

/// Takes the bytes as SPDY, as a server does.
pub fn read_spdy(bytes: &[u8]) {
    receive(&mut Spdy::server(), bytes);
}

/// Takes the bytes as a WebSocket, in each of the ways that clients use one.
pub fn read_websocket(bytes: &[u8]) {
    receive(&mut Channels::new(Coding::Binary, Closing::ByChannel), bytes);
    receive(&mut Channels::new(Coding::Base64, Closing::Never), bytes);
    receive(&mut Tunnel::default(), bytes);
}

/// The first byte says how long the pieces are that the others arrive in.
fn receive(protocol: &mut impl StreamProtocol, bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else {
        return;
    };
    let (mut events, mut output) = (VecDeque::new(), Vec::new());
    for piece in bytes.chunks(usize::from(piece).max(1)) {
        if protocol.receive(piece, &mut events, &mut output).is_err() {
            return;
        }
    }
}
