//! The store: conditions, the past, watches, and what survives a restart.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulselet_store::{
    EtcdConfig, EtcdStore, Expect, HistoryLimits, Range, Revision, SqliteStore, Store, StoreError, Swap,
    Swapped, Watch,
};
use pulselet_testing::etcd::EtcdCluster;
use tempfile::TempDir;

fn open(directory: &Path) -> SqliteStore {
    SqliteStore::open(&directory.join("store.db"), HistoryLimits::default()).expect("the store opens")
}

/// A store to test, of one kind or the other, and what it lives in.
struct Fixture {
    directory: TempDir,
    etcd: Option<EtcdCluster>,
    /// How much of the past is kept.
    limits: HistoryLimits,
    compaction_interval: Duration,
}

impl Fixture {
    /// One of each kind; without etcd there is one less.
    fn all() -> Vec<Self> {
        let of = |etcd| Self {
            directory: TempDir::new().expect("a directory"),
            etcd,
            limits: HistoryLimits::default(),
            compaction_interval: EtcdConfig::COMPACTION_INTERVAL,
        };
        let etcd = EtcdCluster::start(1).map(|cluster| of(Some(cluster)));
        [of(None)].into_iter().chain(etcd).collect()
    }

    /// A store that soon forgets.
    fn forgetful(self) -> Self {
        Self {
            limits: HistoryLimits {
                changes: 8,
                bytes: 1 << 20,
            },
            compaction_interval: Duration::from_millis(50),
            ..self
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        let path = self.directory.path().join("store.db");
        let Some(etcd) = &self.etcd else {
            return Arc::new(SqliteStore::open(&path, self.limits).expect("the store opens"));
        };
        let mut config: EtcdConfig = etcd.url().parse().expect("members");
        config.compaction_interval = Some(self.compaction_interval);
        Arc::new(EtcdStore::open(&config, &path).await.expect("the store opens"))
    }
}

fn swap(key: &str, expect: Expect, value: Option<&str>) -> Swap {
    Swap {
        key: key.to_owned(),
        expect,
        value: value.map(|value| Bytes::from(value.to_owned())),
        guards: Vec::new(),
    }
}

async fn put(store: &dyn Store, key: &str, value: &str) -> Revision {
    let (found, _) = store.get(key).await.expect("a read");
    let expect = found.map_or(Expect::Absent, |entry| Expect::Revision(entry.revision));
    match store.swap(swap(key, expect, Some(value))).await.expect("a write") {
        Swapped::Done(revision) => revision,
        other => panic!("nobody else writes: {other:?}"),
    }
}

async fn values(store: &dyn Store, at: Option<Revision>) -> Vec<String> {
    let range = Range {
        prefix: "/k/".to_owned(),
        at,
        ..Range::default()
    };
    let page = store.range(range).await.expect("a read");
    let text = |value: &Bytes| String::from_utf8_lossy(value).into_owned();
    page.entries.iter().map(|entry| text(&entry.value)).collect()
}

/// The revisions of the next `count` changes.
async fn next_revisions(watch: &mut Box<dyn Watch>, count: usize) -> Vec<Revision> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let changes = watch.next().await.expect("a change");
        seen.extend(changes.iter().map(|change| change.revision));
    }
    seen
}

#[tokio::test]
async fn a_swap_happens_only_if_its_expectations_hold() {
    for fixture in Fixture::all() {
        let store = fixture.open().await;
        let first = put(&*store, "/k/a", "1").await;
        let second = put(&*store, "/k/a", "2").await;
        assert!(second > first);
        for expect in [Expect::Absent, Expect::Revision(first)] {
            let answer = store.swap(swap("/k/a", expect, Some("3"))).await.unwrap();
            let Swapped::Conflict(Some(found)) = answer else {
                panic!("{expect:?} does not hold: {answer:?}");
            };
            assert_eq!((found.value.as_ref(), found.revision), (b"2".as_slice(), second));
        }
        let answer = store
            .swap(swap("/k/b", Expect::Present, Some("3")))
            .await
            .unwrap();
        assert!(matches!(answer, Swapped::Conflict(None)), "{answer:?}");
        let mut guarded = swap("/k/b", Expect::Absent, Some("1"));
        guarded.guards.push(("/k/a".to_owned(), Expect::Revision(second)));
        guarded.guards.push(("/k/missing".to_owned(), Expect::Present));
        let answer = store.swap(guarded.clone()).await.unwrap();
        assert!(matches!(answer, Swapped::GuardFailed { key } if key == "/k/missing"));
        assert_eq!(values(&*store, None).await, ["2"]);
        guarded.guards.pop();
        let answer = store.swap(guarded).await.unwrap();
        let Swapped::Done(third) = answer else {
            panic!("everything holds: {answer:?}")
        };
        let (found, newest) = store.get("/k/b").await.unwrap();
        assert_eq!((found.map(|entry| entry.revision), newest), (Some(third), third));
    }
}

#[tokio::test]
async fn a_past_state_can_be_read_and_paged() {
    for fixture in Fixture::all() {
        let store = fixture.open().await;
        put(&*store, "/k/a", "a1").await;
        put(&*store, "/k/b", "b1").await;
        let past = put(&*store, "/k/c", "c1").await;
        put(&*store, "/k/b", "b2").await;
        put(&*store, "/k/b", "b3").await;
        put(&*store, "/k/d", "d1").await;
        put(&*store, "/l/a", "another kind").await;
        store.swap(swap("/k/a", Expect::Present, None)).await.unwrap();
        assert_eq!(values(&*store, None).await, ["b3", "c1", "d1"]);
        assert_eq!(values(&*store, Some(past)).await, ["a1", "b1", "c1"]);

        let first = Range {
            prefix: "/k/".to_owned(),
            limit: Some(2),
            at: Some(past),
            after: None,
            max_bytes: None,
        };
        let page = store.range(first.clone()).await.unwrap();
        assert_eq!((page.entries.len(), page.remaining, page.revision), (2, 1, past));
        let second = Range {
            after: Some(page.entries[1].key.clone()),
            ..first
        };
        let page = store.range(second).await.unwrap();
        assert_eq!((page.entries[0].key.as_str(), page.remaining), ("/k/c", 0));
    }
}

#[tokio::test]
async fn a_page_ends_at_its_bytes_and_a_list_of_many_pages_is_of_one_state() {
    for fixture in Fixture::all() {
        let store = fixture.open().await;
        // Whoever guesses the sizes of the last ones by the first is very wrong.
        let (small, large) = ("small".to_owned(), "x".repeat(1_000_000));
        for number in 0..156 {
            let value = if number < 120 { &small } else { &large };
            put(&*store, &format!("/k/{number:03}"), value).await;
        }
        let range = Range {
            prefix: "/k/".to_owned(),
            after: Some("/k/119".to_owned()),
            max_bytes: Some(2_500_000),
            ..Range::default()
        };
        let page = store.range(range).await.unwrap();
        assert_eq!((page.entries.len(), page.remaining), (3, 33));
        let everything = values(&*store, Some(page.revision)).await;
        assert_eq!(everything.len(), 156);
        assert_eq!(everything.iter().filter(|value| **value == small).count(), 120);
    }
}

#[tokio::test]
async fn a_watch_resumes_after_a_restart_without_a_gap() {
    for fixture in Fixture::all() {
        let mut expected = Vec::new();
        let start = {
            let store = fixture.open().await;
            let start = put(&*store, "/k/a", "0").await;
            for value in 0..600 {
                expected.push(put(&*store, "/k/a", &value.to_string()).await);
            }
            start
        };
        let store = fixture.open().await;
        let mut watch = store.watch("/k/".to_owned(), start).await.unwrap();
        // The first come from the store, the last from memory.
        put(&*store, "/other/a", "x").await;
        expected.push(put(&*store, "/k/b", "new").await);
        assert_eq!(next_revisions(&mut watch, 601).await, expected);
        assert!(watch.position() >= expected[600]);
    }
}

#[tokio::test]
async fn a_watch_shows_what_a_key_held_before() {
    for fixture in Fixture::all() {
        let store = fixture.open().await;
        let first = put(&*store, "/k/a", "1").await;
        let mut watch = store.watch("/k/".to_owned(), first).await.unwrap();
        let second = put(&*store, "/k/a", "2").await;
        store.swap(swap("/k/a", Expect::Present, None)).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(watch.next().await.unwrap());
        }
        let before = |index: usize| {
            seen[index]
                .previous
                .as_ref()
                .map(|it| (it.revision, it.value.clone()))
        };
        assert_eq!(before(0), Some((first, "1".into())));
        assert_eq!(seen[0].value, Some("2".into()));
        assert_eq!((before(1), &seen[1].value), (Some((second, "2".into())), &None));
    }
}

#[tokio::test]
async fn a_forgotten_or_future_revision_is_refused() {
    for fixture in Fixture::all().into_iter().map(Fixture::forgetful) {
        let store = fixture.open().await;
        let first = put(&*store, "/k/a", "0").await;
        let mut behind = store.watch("/k/".to_owned(), first).await.unwrap();
        let old = Range {
            prefix: "/k/".to_owned(),
            at: Some(first),
            ..Range::default()
        };
        // Forgetting takes its time; a store that does not is found out by the test's own.
        let error = loop {
            put(&*store, "/k/a", "again").await;
            match store.range(old.clone()).await {
                Err(error) => break error,
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
        // One that began before has every change from memory, or is refused; it never has a gap.
        let last = put(&*store, "/k/a", "last").await;
        let mut previous = first;
        while previous < last {
            match behind.next().await {
                Ok(changes) => {
                    for change in changes {
                        assert_eq!(change.previous.as_ref().map(|it| it.revision), Some(previous));
                        previous = change.revision;
                    }
                }
                Err(StoreError::Compacted { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop((behind, store));
        // In memory there is nothing of it now.
        let store = fixture.open().await;
        let error = store.watch("/k/".to_owned(), first).await.unwrap_err();
        assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
        let newest = store.get("").await.unwrap().1;
        let future = Revision(newest.0 + 1000);
        let error = store.watch("/k/".to_owned(), future).await.unwrap_err();
        assert!(matches!(error, StoreError::Future { .. }), "{error}");
        let at = Some(future);
        let error = store.range(Range { at, ..old }).await.unwrap_err();
        assert!(matches!(error, StoreError::Future { .. }), "{error}");
        assert!(store.watch("/k/".to_owned(), newest).await.is_ok());
    }
}

#[tokio::test]
async fn concurrent_writers_of_one_key_never_both_win() {
    for fixture in Fixture::all() {
        let store = fixture.open().await;
        let tasks: Vec<_> = (0..64)
            .map(|writer| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let swap = swap("/k/a", Expect::Absent, Some(&writer.to_string()));
                    matches!(store.swap(swap).await.expect("a write"), Swapped::Done(_))
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            winners += usize::from(task.await.unwrap());
        }
        assert_eq!(winners, 1);
    }
}

#[tokio::test]
async fn a_store_is_the_same_after_a_restart() {
    for fixture in Fixture::all() {
        let first = fixture.open().await.identity().to_owned();
        assert!(!first.is_empty());
        assert_eq!(fixture.open().await.identity(), first);
    }
}

#[tokio::test]
async fn the_file_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().unwrap();
    let store = open(directory.path());
    put(&store, "/k/a", "1").await;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", file.path());
    }
}

/// A data directory with the store that the program wrote when it had its first format.
fn first_format() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let from = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testing/data/first-format/api.db"
    );
    std::fs::copy(from, directory.path().join("api.db")).expect("a copy");
    directory
}

#[test]
fn a_store_of_a_newer_format_is_refused_and_left_alone() {
    let directory = first_format();
    let path = directory.path().join("api.db");
    let database = rusqlite::Connection::open(&path).expect("a database");
    database.pragma_update(None, "user_version", 9).expect("written");
    drop(database);
    let before = std::fs::read(&path).expect("reads");
    let refused = SqliteStore::open(&path, HistoryLimits::default());
    let error = refused.expect_err("it is newer").to_string();
    assert!(
        error.contains("api.db has format 9, this program knows 1"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).expect("reads"), before);
    let files: Vec<_> = std::fs::read_dir(directory.path())
        .expect("lists")
        .flatten()
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
}
