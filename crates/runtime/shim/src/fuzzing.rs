//! What fuzzers call, and nobody else: these functions take what the other end of a shim's socket sends, what is in its
//! files, and what a container writes.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

use jiff::Timestamp;
use pulselet_runtime::log::{LogEntry, LogStream, MAX_ENTRY_TEXT};
use pulselet_runtime::{ContainerExit, TerminalSize};

use crate::connection::Connection;
use crate::handshake::Handshake;
use crate::log_file::LineCutter;
use crate::protocol::{Channel, Reply, Request, to_json};
use crate::record::LifeRecord;

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[
    ("log_lines", cut_log_lines),
    ("shim_frames", read_frames),
    ("shim_records", read_records),
];

/// Bytes that fit the buffer of a socket, so that nothing waits.
const MAX_SENT: usize = 64 << 10;

/// Takes frames from a client, as requests and as pieces of a stream.
pub fn read_frames(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_SENT)];
    // Without sockets there is nothing to try.
    let _ = frames(bytes);
}

fn frames(bytes: &[u8]) -> io::Result<()> {
    let (mut client, ours) = UnixStream::pair()?;
    client.write_all(bytes)?;
    drop(client);
    let mut connection = Connection::new(ours)?;
    while !connection.ended() {
        connection.fill();
        while let Ok(Some(frame)) = connection.next_frame() {
            if let Ok(request) = serde_json::from_slice::<Request>(&frame) {
                let again = serde_json::from_slice::<Request>(&to_json(&request));
                assert_eq!(again.ok(), Some(request), "a request reads back");
            }
            if let Ok(reply) = serde_json::from_slice::<Reply>(&frame) {
                let again = serde_json::from_slice::<Reply>(&to_json(&reply));
                assert_eq!(again.ok(), Some(reply), "a reply reads back");
            }
            if let Some((Channel::Resize, data)) = Channel::split(&frame) {
                let _ = serde_json::from_slice::<TerminalSize>(data);
            }
        }
    }
    Ok(())
}

/// Reads the files that a shim keeps, and its report.
pub fn read_records(bytes: &[u8]) {
    let _ = serde_json::from_slice::<LifeRecord>(bytes);
    let _ = serde_json::from_slice::<Handshake>(bytes);
    if let Ok(exit) = serde_json::from_slice::<ContainerExit>(bytes) {
        let again = serde_json::from_slice::<ContainerExit>(&to_json(&exit));
        assert_eq!(again.ok(), Some(exit), "an exit reads back");
    }
}

/// Cuts what a container writes into entries of its log. The first byte says how long the pieces are that it arrives in.
pub fn cut_log_lines(bytes: &[u8]) {
    let Some((&piece, output)) = bytes.split_first() else {
        return;
    };
    let mut cutter = LineCutter::new(LogStream::Stdout);
    let mut log = Vec::new();
    for piece in output.chunks(usize::from(piece).max(1) * 64) {
        cutter.push(piece, Timestamp::UNIX_EPOCH, &mut log);
    }
    cutter.finish(Timestamp::UNIX_EPOCH, &mut log);
    let mut text = Vec::new();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let entry = LogEntry::parse(line).expect("what a shim writes is an entry");
        assert!(entry.text.len() <= MAX_ENTRY_TEXT);
        assert_eq!(
            entry.stream,
            LogStream::Stdout,
            "no container writes as another stream"
        );
        text.extend_from_slice(entry.text);
        if !entry.partial {
            text.push(b'\n');
        }
    }
    assert_eq!(text, output, "nothing is lost or added");
    // A log may also have been written by another runtime.
    for line in output.split(|byte| *byte == b'\n') {
        let _ = LogEntry::parse(line);
    }
}
