//! What a container writes, in its log file.

use std::fs;

use pulselet_runtime::{
    Runtime,
    log::{LogEntry, LogStream, MAX_ENTRY_TEXT},
};

use crate::world::{World, eventually};

/// Stream, whether it is a piece of a line, and text of each entry.
fn entries(text: &[u8]) -> Vec<(LogStream, bool, Vec<u8>)> {
    text.split_inclusive(|&byte| byte == b'\n')
        .map(|line| {
            let entry = LogEntry::parse(line)
                .unwrap_or_else(|| panic!("no entry: {}", String::from_utf8_lossy(line)));
            (entry.stream, entry.partial, entry.text.to_vec())
        })
        .collect()
}

#[tokio::test]
async fn both_streams_are_logged_in_full() {
    let world = World::new().await;
    let id = world.run("echo one; echo two >&2; sleep 0.05; printf end").await;
    world.wait_for_exit(&id).await;
    let mut entries = entries(&fs::read(world.path("logs/main/0.log")).expect("a log"));
    entries.sort_by_key(|(stream, ..)| *stream == LogStream::Stderr);
    let expected = [
        (LogStream::Stdout, false, b"one".to_vec()),
        (LogStream::Stdout, true, b"end".to_vec()),
        (LogStream::Stderr, false, b"two".to_vec()),
    ];
    assert_eq!(entries, expected);
    world.finish().await;
}

#[tokio::test]
async fn long_lines_and_a_lot_of_output_are_complete_when_the_exit_is_told() {
    let world = World::new().await;
    let id = world
        .run("head -c 40000 /dev/zero | tr '\\0' x; echo; seq 1 20000")
        .await;
    world.wait_for_exit(&id).await;
    let entries = entries(&fs::read(world.path("logs/main/0.log")).expect("a log"));
    let sizes: Vec<_> = entries[..3]
        .iter()
        .map(|(_, partial, text)| (*partial, text.len()))
        .collect();
    assert_eq!(
        sizes,
        [
            (true, MAX_ENTRY_TEXT),
            (true, MAX_ENTRY_TEXT),
            (false, 40000 - 2 * MAX_ENTRY_TEXT)
        ]
    );
    let numbers: Vec<_> = entries[3..]
        .iter()
        .map(|(_, _, text)| String::from_utf8_lossy(text).into_owned())
        .collect();
    assert!(
        numbers.iter().map(String::as_str).eq((1..=20000)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str))
    );
    world.finish().await;
}

#[tokio::test]
async fn a_log_that_was_moved_away_is_opened_anew() {
    let world = World::new().await;
    let id = world
        .run("echo one; while [ ! -e $T/go ]; do sleep 0.01; done; echo two; exec sleep 1000")
        .await;
    let log = world.path("logs/main/0.log");
    let has = async |word: &str| {
        eventually("the log has the word", async || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.ends_with(&format!("{word}\n")).then_some(text)
        })
        .await
    };
    has("one").await;
    fs::rename(&log, world.path("logs/main/0.log.old")).expect("moves");
    world.runtime.reopen_log(&id).await.expect("reopens");
    fs::write(world.path("go"), "").expect("writes");
    assert_eq!(entries(has("two").await.as_bytes()).len(), 1);
    world.finish().await;
}
