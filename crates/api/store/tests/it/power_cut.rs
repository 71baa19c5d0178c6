//! Power cuts: the store, started from what every one of them would leave.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use pulselet_store::{Expect, HistoryLimits, SqliteStore, Store, StoreError, Swap};
use pulselet_testing::file_trace;

/// Set for the process that is recorded: the directory it works in.
const HOME_VARIABLE: &str = "PULSELET_TEST_HOME";
/// A file by which it says what was acknowledged.
const ACKNOWLEDGED: &str = "acknowledged";
const WRITES: usize = 4;

fn open(directory: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(&directory.join("api.db"), HistoryLimits::default())
}

/// Not a test of its own: what the store does until the power is cut.
#[tokio::test]
async fn recorded_work() {
    use std::io::Write as _;
    let Some(home) = std::env::var_os(HOME_VARIABLE).map(PathBuf::from) else {
        return;
    };
    let mut acknowledged = std::fs::File::create(home.join(ACKNOWLEDGED)).expect("makes");
    for life in 0..2 {
        let store = open(&home).expect("the store opens");
        for number in 0..WRITES / 2 {
            let key = format!("/k/{life}-{number}");
            let swap = Swap {
                key: key.clone(),
                expect: Expect::Absent,
                value: Some(Bytes::from(vec![b'x'; 3000])),
                guards: Vec::new(),
            };
            store.swap(swap).await.expect("writes");
            writeln!(acknowledged, "{key}").expect("writes");
        }
        store.settle().await.expect("settles");
    }
}

#[test]
fn no_power_cut_loses_what_was_acknowledged() {
    let home = tempfile::tempdir().expect("a directory");
    let mut work = Command::new(std::env::current_exe().expect("is known"));
    work.args(["--exact", "power_cut::recorded_work"])
        .env(HOME_VARIABLE, home.path());
    let Some(trace) = file_trace::record(&mut work, home.path()) else {
        return;
    };
    let keys: Vec<String> = (0..2)
        .flat_map(|life| (0..WRITES / 2).map(move |number| format!("/k/{life}-{number}")))
        .collect();
    let acknowledged: Vec<(String, usize)> = keys
        .into_iter()
        .map(|key| {
            let at = trace.first_with(&home.path().join(ACKNOWLEDGED), &key);
            (key, at.expect("it was acknowledged"))
        })
        .collect();
    assert!(trace.len() > 50, "{} changes", trace.len());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    trace.images(|directory, changes, loss| {
        let store = open(directory)
            .unwrap_or_else(|error| panic!("a cut after {changes} changes ({loss:?}): {error}"));
        for (key, at) in &acknowledged {
            let (found, _) = runtime.block_on(store.get(key)).expect("reads");
            assert!(
                found.is_some() || changes < *at,
                "{key} was acknowledged after {at} changes and is lost by a cut after {changes} ({loss:?})"
            );
        }
    });
}
