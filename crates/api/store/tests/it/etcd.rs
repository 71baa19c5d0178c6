//! The store on an etcd cluster whose members fail, whose certificates are asked for, and whose data is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pulselet_store::{
    EtcdConfig, EtcdStore, EtcdTls, Expect, Range, Revision, Store, StoreError, Swap, Swapped,
};
use pulselet_testing::etcd::{EtcdCluster, EtcdFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

const MEMBERS: usize = 3;
const WRITERS: usize = 4;
/// How often a member is killed while writers and watchers go on.
const KILLS: usize = 4;

fn config(cluster: &EtcdCluster) -> EtcdConfig {
    cluster.url().parse().expect("members")
}

async fn open(cluster: &EtcdCluster, directory: &TempDir, name: &str) -> EtcdStore {
    EtcdStore::open(&config(cluster), &directory.path().join(name))
        .await
        .expect("the store opens")
}

fn create(key: String, value: &str) -> Swap {
    Swap {
        key,
        expect: Expect::Absent,
        value: Some(Bytes::from(value.to_owned())),
        guards: Vec::new(),
    }
}

/// What one writer was told about its writes.
#[derive(Debug, Default)]
struct Told {
    done: BTreeMap<String, Revision>,
    unknown: BTreeSet<String>,
}

/// Writes new keys until it is stopped.
async fn write(store: EtcdStore, writer: usize, stop: Arc<AtomicBool>) -> Told {
    let mut told = Told::default();
    for number in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let key = format!("/k/{writer}-{number:06}");
        match store.swap(create(key.clone(), "x")).await {
            Ok(Swapped::Done(revision)) => {
                told.done.insert(key, revision);
            }
            Ok(other) => panic!("nobody else writes {key}: {other:?}"),
            Err(StoreError::Unanswered { .. }) => {
                told.unknown.insert(key);
            }
            Err(StoreError::Unreachable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    told
}

/// Every change up to a revision that is sent in the end.
async fn watch(
    store: EtcdStore,
    after: Revision,
    mut end: tokio::sync::watch::Receiver<Option<Revision>>,
) -> Vec<(Revision, String)> {
    let mut watch = store.watch("/k/".to_owned(), after).await.expect("a watch");
    let mut seen = Vec::new();
    loop {
        tokio::select! {
            changes = watch.next() => {
                let changes = changes.expect("a watch goes on");
                seen.extend(changes.iter().map(|change| (change.revision, change.key.clone())));
            }
            changed = end.changed() => changed.expect("the test goes on"),
        }
        let last = seen.last().map(|(revision, _)| *revision);
        if end.borrow().is_some_and(|end| last >= Some(end)) {
            return seen;
        }
    }
}

async fn listed(store: &EtcdStore) -> Vec<(Revision, String)> {
    let range = Range {
        prefix: "/k/".to_owned(),
        ..Range::default()
    };
    let page = store.range(range).await.expect("a read");
    let mut all: Vec<_> = page
        .entries
        .into_iter()
        .map(|entry| (entry.revision, entry.key))
        .collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn members_killed_at_random_lose_no_write_and_no_change() {
    let Some(mut cluster) = EtcdCluster::start(MEMBERS) else {
        return;
    };
    let directory = TempDir::new().expect("a directory");
    let (one, other) = (
        open(&cluster, &directory, "one").await,
        open(&cluster, &directory, "other").await,
    );
    let start = one.get("").await.expect("a read").1;
    let (end, ends) = tokio::sync::watch::channel(None);
    let watchers: Vec<_> = [&one, &one, &other]
        .map(|store| tokio::spawn(watch(store.clone(), start, ends.clone())))
        .into();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = if writer % 2 == 0 { &one } else { &other };
            tokio::spawn(write(store.clone(), writer, Arc::clone(&stop)))
        })
        .collect();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    for kill in 0..KILLS {
        let member = usize::try_from((seed >> (8 * kill)) % 3).expect("small");
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.kill(member);
        // Longer than it takes to find another leader.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        cluster.restart(member);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    stop.store(true, Ordering::Release);
    let mut told = Told::default();
    for writer in writers {
        let writer = writer.await.expect("a writer ends");
        told.done.extend(writer.done);
        told.unknown.extend(writer.unknown);
    }
    let last = match one.swap(create("/k/last".to_owned(), "")).await.expect("a write") {
        Swapped::Done(revision) => revision,
        conflict => panic!("{conflict:?}"),
    };
    end.send(Some(last)).expect("watchers wait");
    let all = listed(&one).await;
    let there: BTreeMap<&String, Revision> = all.iter().map(|(revision, key)| (key, *revision)).collect();
    for (key, revision) in &told.done {
        assert_eq!(there.get(key), Some(revision), "{key} was acknowledged");
    }
    for key in there.keys().filter(|key| **key != "/k/last") {
        assert!(
            told.done.contains_key(*key) || told.unknown.contains(*key),
            "nobody wrote {key}"
        );
    }
    println!("{} acknowledged, {} unknown", told.done.len(), told.unknown.len());
    assert!(told.done.len() > 20, "the cluster was there most of the time");
    for watcher in watchers {
        assert_eq!(watcher.await.expect("a watcher ends"), all);
    }
    // A copy that begins now has all of it from the past.
    let late = open(&cluster, &directory, "late").await;
    assert_eq!(watch(late, start, end.subscribe()).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_acknowledged_and_silent_members_are_left() {
    let Some(mut cluster) = EtcdCluster::start(MEMBERS) else {
        return;
    };
    let directory = TempDir::new().expect("a directory");
    let store = open(&cluster, &directory, "store").await;
    // The first is the one that is asked.
    cluster.freeze(0, true);
    let begin = Instant::now();
    store.get("/k/a").await.expect("others answer");
    println!("left a silent member after {:?}", begin.elapsed());
    cluster.freeze(0, false);

    cluster.kill(1);
    cluster.kill(2);
    let error = store
        .swap(create("/k/a".to_owned(), "1"))
        .await
        .expect_err("one of three is no majority");
    assert!(
        matches!(
            error,
            StoreError::Unanswered { .. } | StoreError::Unreachable { .. }
        ),
        "{error}"
    );
    assert!(store.trouble().is_some());
    cluster.restart(1);
    cluster.restart(2);
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.swap(create("/k/b".to_owned(), "1")).await {
            Ok(_) => break,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
    assert_eq!(store.trouble(), None);
}

#[tokio::test]
async fn another_store_than_before_is_refused() {
    let (Some(first), Some(second)) = (EtcdCluster::start(1), EtcdCluster::start(1)) else {
        return;
    };
    let directory = TempDir::new().expect("a directory");
    let remembered = directory.path().join("etcd");
    let identity = EtcdStore::open(&config(&first), &remembered)
        .await
        .expect("the store opens")
        .identity()
        .to_owned();
    let error = EtcdStore::open(&config(&second), &remembered)
        .await
        .expect_err("it is empty");
    assert!(matches!(error, StoreError::Forgetful { .. }), "{error}");
    let mut elsewhere = config(&first);
    elsewhere.prefix = "/elsewhere".to_owned();
    let error = EtcdStore::open(&elsewhere, &remembered)
        .await
        .expect_err("nothing is there");
    assert!(matches!(error, StoreError::Forgetful { .. }), "{error}");
    let again = EtcdStore::open(&config(&first), &remembered)
        .await
        .expect("it is the same");
    assert_eq!(again.identity(), identity);
    // Below another prefix there is another store.
    let other = EtcdStore::open(&elsewhere, &directory.path().join("other"))
        .await
        .expect("it is new");
    assert_ne!(other.identity(), identity);
    other.swap(create("/k/a".to_owned(), "1")).await.expect("a write");
    assert!(again.get("/k/a").await.expect("a read").0.is_none());
}

#[tokio::test]
async fn a_member_that_is_not_there_is_an_error_with_its_name() {
    let config: EtcdConfig = "etcd://127.9.9.9:1".parse().expect("a member");
    let directory = TempDir::new().expect("a directory");
    let error = EtcdStore::open(&config, &directory.path().join("etcd"))
        .await
        .expect_err("nobody is there");
    assert!(
        matches!(&error, StoreError::Unreachable { message } if message.contains("127.9.9.9:1")),
        "{error}"
    );
}

/// A way to a member that can be cut.
struct CutProxy {
    address: SocketAddr,
    is_open: tokio::sync::watch::Sender<bool>,
}

impl CutProxy {
    async fn start(member: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (is_open, opened) = tokio::sync::watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut opened = opened.clone();
                if !*opened.borrow_and_update() {
                    continue;
                }
                tokio::spawn(async move {
                    let mut member = TcpStream::connect(member).await?;
                    tokio::select! {
                        copied = tokio::io::copy_bidirectional(&mut client, &mut member) => copied.map(drop),
                        _ = opened.changed() => Ok(()),
                    }
                });
            }
        });
        Self { address, is_open }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_cut_off_for_too_long_says_so_and_has_no_gap() {
    let Some(cluster) = EtcdCluster::start(1) else {
        return;
    };
    let directory = TempDir::new().expect("a directory");
    let writer = open(&cluster, &directory, "writer").await;
    let member = cluster
        .url()
        .trim_start_matches("etcd://")
        .parse()
        .expect("an address");
    let proxy = CutProxy::start(member).await;
    let mut behind: EtcdConfig = format!("etcd://{}", proxy.address).parse().expect("a member");
    behind.compaction_interval = None;
    let reader = EtcdStore::open(&behind, &directory.path().join("reader"))
        .await
        .expect("the store opens");
    let start = reader.get("").await.expect("a read").1;
    let mut watch = reader.watch("/k/".to_owned(), start).await.expect("a watch");
    writer
        .swap(create("/k/seen".to_owned(), ""))
        .await
        .expect("a write");
    let seen = watch.next().await.expect("a change");
    assert_eq!(seen[0].key, "/k/seen");

    proxy.is_open.send_replace(false);
    let mut forgets = config(&cluster);
    forgets.compaction_interval = Some(Duration::from_millis(50));
    let forgetter = EtcdStore::open(&forgets, &directory.path().join("forgetter"))
        .await
        .expect("the store opens");
    // A change that the watch has yet to see: while that can be read, nothing was missed.
    let old = Range {
        prefix: "/k/".to_owned(),
        at: Some(Revision(seen[0].revision.0 + 2)),
        ..Range::default()
    };
    for number in 0.. {
        let missed = create(format!("/k/missed-{number}"), "");
        writer.swap(missed).await.expect("a write");
        // Far enough behind that it cannot go on.
        if number > 10 && writer.range(old.clone()).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(forgetter);
    proxy.is_open.send_replace(true);
    let error = watch.next().await.expect_err("it has missed changes");
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    // Those who list anew go on from there.
    let now = reader.get("").await.expect("a read").1;
    let mut watch = reader.watch("/k/".to_owned(), now).await.expect("a watch");
    writer
        .swap(create("/k/after".to_owned(), ""))
        .await
        .expect("a write");
    assert_eq!(watch.next().await.expect("a change")[0].key, "/k/after");
}

/// Files of an authority and of a certificate for a member at this address, which a client may use as well.
fn certificates(directory: &Path, address: Ipv4Addr) -> EtcdFiles {
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(authority, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let mut member = CertificateParams::new(Vec::new()).expect("parameters");
    member.subject_alt_names.push(SanType::IpAddress(address.into()));
    let member = member.signed_by(&key, &authority).expect("a certificate");
    let file = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    EtcdFiles {
        authority: file("ca.crt", authority.pem()),
        certificate: file("member.crt", member.pem()),
        key: file("member.key", key.serialize_pem()),
    }
}

#[tokio::test]
async fn etcd_is_spoken_to_with_certificates() {
    let directory = TempDir::new().expect("a directory");
    let addresses = EtcdCluster::addresses(1);
    let files = certificates(directory.path(), addresses[0]);
    let Some(cluster) = EtcdCluster::start_on(&addresses, Some(files.clone())) else {
        return;
    };
    let remembered = directory.path().join("etcd");
    let mut config = config(&cluster);
    config.tls = Some(EtcdTls {
        authority: files.authority.clone(),
        client: Some((files.certificate.clone(), files.key.clone())),
    });
    let store = EtcdStore::open(&config, &remembered)
        .await
        .expect("both are known");
    store.swap(create("/k/a".to_owned(), "1")).await.expect("a write");
    config.tls = Some(EtcdTls {
        authority: files.authority.clone(),
        client: None,
    });
    let error = EtcdStore::open(&config, &remembered)
        .await
        .expect_err("we show no certificate");
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    config.tls = Some(EtcdTls {
        authority: directory.path().join("missing"),
        client: None,
    });
    let error = EtcdStore::open(&config, &remembered)
        .await
        .expect_err("there is no such file");
    assert!(error.to_string().contains("missing"), "{error}");
}
