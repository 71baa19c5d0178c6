//! A store that is damaged, lost, or on a full disk; and clients that are slow.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use pulselet_apiserver::{Config, PkiError, ServeError, Server, backup_store, check_store, restore_store};
use pulselet_store::{
    Expect, HistoryLimits, Integrity, Revision, SqliteStore, Store, StoreError, Swap, check,
};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::harness::TestServer;

fn open(directory: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(&directory.join("api.db"), HistoryLimits::default())
}

async fn put(store: &SqliteStore, key: &str, value: Vec<u8>) -> Revision {
    let swap = Swap {
        key: key.to_owned(),
        expect: Expect::Absent,
        value: Some(Bytes::from(value)),
        guards: Vec::new(),
    };
    store.swap(swap).await.expect("a write");
    store.get(key).await.expect("a read").1
}

async fn has(store: &SqliteStore, key: &str) -> bool {
    store.get(key).await.expect("a read").0.is_some()
}

fn config_map(server: &TestServer, name: &str) -> bool {
    let created = server.kubectl(&["create", "configmap", name, "--from-literal=a=b"]);
    created.map(crate::harness::Answer::success).is_some()
}

#[test]
fn a_damaged_object_is_one_error_and_the_others_are_served() {
    let server = TestServer::start();
    if !["one", "two", "three"]
        .iter()
        .all(|name| config_map(&server, name))
    {
        return;
    }
    let directory = server.stop();
    let connection = Connection::open(directory.path().join("api.db")).expect("opens");
    let changed = connection
        .execute(
            "UPDATE current SET value = CAST(replace(CAST(value AS TEXT), '}', '\u{1}') AS BLOB) WHERE key LIKE '%/two'",
            [],
        )
        .expect("flips");
    assert_eq!(changed, 1);
    drop(connection);
    let report = check_store(directory.path()).expect("checks");
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    assert!(
        report.damaged[0].ends_with("/two") && report.file.is_empty(),
        "{report:?}"
    );
    let server = TestServer::start_in(directory, |_| {});
    let kubectl = |arguments: &[&str]| server.kubectl(arguments).expect("it was there");
    let listed = kubectl(&["get", "configmaps", "-o", "name"]);
    assert!(
        listed.stderr.contains("/two"),
        "the damaged one is named: {listed:?}"
    );
    let listed = listed.success();
    assert!(
        listed.contains("configmap/one") && listed.contains("configmap/three"),
        "{listed}"
    );
    let one = kubectl(&["get", "configmap", "two"]).failure();
    assert!(one.contains("damaged") && one.contains("/two"), "{one}");
    kubectl(&["delete", "configmap", "two"]).success();
    let listed = kubectl(&["get", "configmaps", "-o", "name"]);
    assert!(!listed.stderr.contains("damaged"), "{listed:?}");
}

#[test]
fn an_object_that_still_reads_well_but_is_not_what_was_written_is_damaged() {
    let server = TestServer::start();
    if !["one", "two"].iter().all(|name| config_map(&server, name)) {
        return;
    }
    let directory = server.stop();
    let connection = Connection::open(directory.path().join("api.db")).expect("opens");
    let flip = r#"UPDATE current SET value = CAST(replace(CAST(value AS TEXT), '"a":"b"', '"a":"c"') AS BLOB) WHERE key LIKE '%configmaps%/two'"#;
    assert_eq!(connection.execute(flip, []).expect("flips"), 1);
    drop(connection);
    let report = check_store(directory.path()).expect("checks");
    assert!(
        matches!(&report.damaged[..], [key] if key.ends_with("/two")),
        "{report:?}"
    );
    let server = TestServer::start_in(directory, |_| {});
    let kubectl = |arguments: &[&str]| server.kubectl(arguments).expect("it was there");
    let listed = kubectl(&["get", "configmaps", "-o", "name"]);
    assert!(listed.stderr.contains("/two"), "it is named: {listed:?}");
    assert!(!listed.success().contains("configmap/two"));
    for format in ["name", "json"] {
        let one = kubectl(&["get", "configmap", "two", "-o", format]).failure();
        assert!(one.contains("damaged") && one.contains("/two"), "{one}");
    }
}

#[tokio::test]
async fn values_of_a_build_without_checksums_are_served_and_it_can_write_again() {
    let directory = TempDir::new().expect("a directory");
    let integrity = async |store: &SqliteStore, key: &str| {
        let (found, _) = store.get(key).await.expect("a read");
        found.expect("a value").integrity
    };
    let store = open(directory.path()).expect("opens");
    put(&store, "/old", b"1".to_vec()).await;
    assert_eq!(integrity(&store, "/old").await, Integrity::Intact);
    store.settle().await.expect("settles");
    drop(store);
    let path = directory.path().join("api.db");
    let connection = Connection::open(&path).expect("opens");
    connection
        .execute_batch("ALTER TABLE current DROP COLUMN checksum")
        .expect("an earlier file");
    drop(connection);
    let never_damaged = |_: &[u8], integrity| integrity == Integrity::Unknown;
    assert!(check(&path, never_damaged).expect("checks").is_whole());
    let store = open(directory.path()).expect("opens what an earlier build wrote");
    assert_eq!(integrity(&store, "/old").await, Integrity::Unknown);
    put(&store, "/new", b"2".to_vec()).await;
    assert_eq!(integrity(&store, "/new").await, Integrity::Intact);
    // As an earlier build writes.
    let connection = Connection::open(&path).expect("opens");
    let replaced = connection.execute(
        "INSERT OR REPLACE INTO current (key, revision, value) VALUES ('/new', 3, x'33')",
        [],
    );
    assert_eq!(replaced.expect("writes"), 1);
    assert_eq!(integrity(&store, "/new").await, Integrity::Unknown);
}

#[test]
fn a_damaged_key_does_not_keep_a_list_from_the_others() {
    let server = TestServer::start();
    if !["one", "two", "three"]
        .iter()
        .all(|name| config_map(&server, name))
    {
        return;
    }
    let directory = server.stop();
    let connection = Connection::open(directory.path().join("api.db")).expect("opens");
    for table in ["current", "history"] {
        let flip = format!(
            "UPDATE {table} SET key = CAST(CAST(key AS BLOB) || x'ff' AS TEXT) WHERE key LIKE '%configmaps%/two'"
        );
        assert_eq!(connection.execute(&flip, []).expect("flips"), 1, "{table}");
    }
    drop(connection);
    let report = check_store(directory.path()).expect("checks");
    assert_eq!(report.file, ["a key cannot be read"]);
    let server = TestServer::start_in(directory, |_| {});
    let kubectl = |arguments: &[&str]| server.kubectl(arguments).expect("it was there");
    let listed = kubectl(&["get", "configmaps", "-o", "name"]).success();
    for name in ["configmap/one", "configmap/three"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert!(
        kubectl(&["get", "configmap", "two"])
            .failure()
            .contains("NotFound")
    );
}

#[test]
fn a_damaged_page_is_found_by_a_check() {
    let server = TestServer::start();
    for name in ["one", "two", "three"] {
        if !config_map(&server, name) {
            return;
        }
    }
    let directory = server.stop();
    let path = directory.path().join("api.db");
    let mut bytes = fs::read(&path).expect("reads");
    let end = bytes.len();
    bytes[4096..end].chunks_mut(4096).for_each(|page| page[0] = 0xff);
    fs::write(&path, bytes).expect("writes");
    let report = check_store(directory.path());
    assert!(
        report.as_ref().map_or(true, |report| !report.file.is_empty()),
        "{report:?}"
    );
}

#[tokio::test]
async fn a_watch_that_lags_reads_by_bytes() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).expect("opens");
    for number in 0..200 {
        put(&store, &format!("/k/{number}"), vec![b'x'; 100 * 1024]).await;
    }
    let mut watch = store.watch("/k/".to_owned(), Revision(0)).await.expect("watches");
    let mut seen = 0;
    while seen < 200 {
        let changes = watch.next().await.expect("changes");
        let bytes: usize = changes
            .iter()
            .filter_map(|change| change.value.as_ref())
            .map(Bytes::len)
            .sum();
        // What the window in memory has is shared by all watches.
        assert!(bytes <= 5 << 20, "{bytes} bytes at once");
        seen += changes.len();
    }
}

#[tokio::test]
async fn a_store_that_forgot_its_past_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("api.db");
    {
        let store = open(directory.path()).expect("opens");
        put(&store, "/k/a", b"1".to_vec()).await;
        store.settle().await.expect("settles");
    }
    let whole = fs::read(&path).expect("reads");
    let refused = |what: &str| {
        let error = open(directory.path()).expect_err(what);
        assert!(matches!(error, StoreError::Forgetful { .. }), "{what}: {error}");
    };
    fs::remove_file(&path).unwrap();
    refused("there is no file");
    fs::write(&path, b"").unwrap();
    refused("the file is empty");
    fs::write(&path, &whole).unwrap();
    let other = TempDir::new().unwrap();
    {
        let store = open(other.path()).expect("opens");
        store.settle().await.expect("settles");
    }
    fs::copy(other.path().join("api.db"), &path).unwrap();
    refused("it is another store");
    fs::write(&path, &whole).unwrap();
    assert!(has(&open(directory.path()).expect("is whole"), "/k/a").await);
}

/// A copy of a directory as a kill at this moment would leave it.
fn copy_of(directory: &Path) -> TempDir {
    let copy = TempDir::new().expect("a directory");
    for entry in fs::read_dir(directory).expect("lists").flatten() {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copies");
    }
    copy
}

#[tokio::test]
async fn a_store_without_its_log_is_refused_and_one_with_it_is_not() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).expect("opens");
    put(&store, "/k/a", b"1".to_vec()).await;
    let (with_log, without_log) = (copy_of(directory.path()), copy_of(directory.path()));
    fs::remove_file(without_log.path().join("api.db-wal")).expect("a store in use has a log");
    let error = open(without_log.path()).expect_err("its log is missing");
    assert!(matches!(error, StoreError::Forgetful { .. }), "{error}");
    assert!(
        has(
            &open(with_log.path()).expect("a killed server's store opens"),
            "/k/a"
        )
        .await
    );
}

#[test]
fn a_server_that_stops_leaves_one_file_that_is_a_backup() {
    let server = TestServer::start();
    if !config_map(&server, "kept") {
        return;
    }
    let stopped = server.stop();
    let copy = TempDir::new().expect("a directory");
    fs::copy(stopped.path().join("api.db"), copy.path().join("api.db")).expect("copies");
    let server = TestServer::start_in(copy, |_| {});
    let listed = server
        .kubectl(&["get", "configmaps", "-o", "name"])
        .expect("it was there");
    assert!(listed.success().contains("configmap/kept"));
}

#[test]
fn a_backup_of_a_running_server_can_be_restored() {
    let server = TestServer::start();
    if !config_map(&server, "kept") {
        return;
    }
    let backups = TempDir::new().expect("a directory");
    let backup = backups.path().join("backup.db");
    backup_store(server.path(), &backup).expect("backs up while it runs");
    backup_store(server.path(), &backup).expect_err("a backup is never overwritten");
    config_map(&server, "lost");
    let held = restore_store(server.path(), &backup).expect_err("a running server's store is not replaced");
    assert!(matches!(held, ServeError::Locked { .. }), "{held}");
    let directory = server.stop();
    let aside = restore_store(directory.path(), &backup).expect("restores");
    assert!(aside.is_some_and(|aside| aside.exists()));
    let server = TestServer::start_in(directory, |_| {});
    let listed = server
        .kubectl(&["get", "configmaps", "-o", "name"])
        .expect("it was there");
    let listed = listed.success();
    assert!(
        listed.contains("configmap/kept") && !listed.contains("configmap/lost"),
        "{listed}"
    );
}

#[tokio::test]
async fn a_missing_key_of_the_authority_is_an_error_with_the_way_back() {
    let directory = TestServer::start().stop();
    fs::remove_file(directory.path().join("pki/ca.key")).expect("it is there");
    let config = Config::new(([127, 0, 0, 1], 0).into(), directory.path());
    let error = Server::bind(config).await.expect_err("no new key");
    assert!(
        matches!(error, ServeError::Pki(PkiError::LostKey { .. })),
        "{error}"
    );
    assert!(!directory.path().join("pki/ca.key").exists());
}

/// A small file system of its own; `None` without the right to mount.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        use rustix::mount::{MountFlags, mount};
        let directory = TempDir::new().expect("a directory");
        let mounted = mount(
            "tmpfs",
            directory.path(),
            "tmpfs",
            MountFlags::empty(),
            c"size=64m",
        );
        let disk = mounted.ok().map(|()| Self(directory));
        pulselet_testing::requires("the right to mount", disk.is_some())
            .then_some(disk)
            .flatten()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.path().join("filler")).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn what_is_on_a_full_disk_can_still_be_deleted() {
    let Some(disk) = SmallDisk::mount() else { return };
    let store = open(disk.path()).expect("opens");
    for number in 0..20 {
        put(&store, &format!("/k/{number}"), vec![b'x'; 1000]).await;
    }
    disk.fill();
    for number in 0..20 {
        let swap = Swap {
            key: format!("/k/{number}"),
            expect: Expect::Present,
            value: None,
            guards: Vec::new(),
        };
        store.swap(swap).await.expect("there is room for a deletion");
    }
    assert_eq!(store.trouble(), None);
}

#[tokio::test]
async fn a_server_starts_on_a_full_disk_with_what_is_there() {
    let Some(disk) = SmallDisk::mount() else { return };
    let data = disk.path().join("data");
    let config = |port| Config::new(([127, 0, 0, 1], port).into(), &data);
    let server = Server::bind(config(0)).await.expect("starts");
    let port = server.address().port();
    server.write_node_kubeconfig("n1").expect("writes");
    drop(server);
    disk.fill();
    // The port is the test's again once the listener of the first server is gone.
    let server = Server::bind(config(port))
        .await
        .expect("starts with what is there");
    server
        .write_node_kubeconfig("n1")
        .expect("the old one is as good");
}
