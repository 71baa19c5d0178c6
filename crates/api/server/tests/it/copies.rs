//! Two API servers on one etcd: what one does, the other knows.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;
use pulselet_apiserver::{Config, ServeError, Server};
use pulselet_testing::etcd::EtcdCluster;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::harness::TestServer;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pulselet-controllers";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

fn start(cluster: &EtcdCluster, directory: TempDir) -> TestServer {
    let etcd = cluster.url().parse().expect("members");
    TestServer::start_in(directory, |config| config.etcd = Some(etcd))
}

/// A data directory with the authority of another one.
fn with_authority_of(other: &Path) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let pki = directory.path().join("pki");
    std::fs::create_dir(&pki).expect("a directory");
    for file in ["ca.crt", "ca.key", "sa.key"] {
        std::fs::copy(other.join("pki").join(file), pki.join(file)).expect("copied");
    }
    directory
}

/// Asks until the answer is as wanted.
async fn eventually(client: &mut Client, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, answer) = client.get(path).await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < end, "{path}: {answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn create_services(mut client: Client, name: &str) -> Vec<String> {
    let mut addresses = Vec::new();
    for number in 0..20 {
        let service = json!({"metadata": {"name": format!("{name}-{number}")},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        let (code, made) = client.post(SERVICES, &service).await;
        assert_eq!(code, 201, "{made}");
        addresses.push(made["spec"]["clusterIP"].to_string());
        addresses.push(made["spec"]["ports"][0]["nodePort"].to_string());
    }
    addresses
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_copy_writes_the_other_reads_watches_and_never_gives_away_twice() {
    let Some(cluster) = EtcdCluster::start(1) else {
        return;
    };
    let one = start(&cluster, TempDir::new().expect("a directory"));
    let other = start(&cluster, with_authority_of(one.path()));
    let (mut here, mut there) = (Client::admin(&one).await, Client::admin(&other).await);

    let (_, listed) = there.get(MAPS).await;
    let version = listed["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version")
        .to_owned();
    let mut events = Client::admin(&other)
        .await
        .watch(&format!("{MAPS}?watch=true&resourceVersion={version}"))
        .await;
    for number in 0..20 {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        let (code, made) = here.post(MAPS, &map).await;
        assert_eq!(code, 201, "{made}");
        let (code, read) = there.get(&format!("{MAPS}/m{number}")).await;
        assert_eq!((code, &read), (200, &made), "a read is consistent at every copy");
        assert_eq!(
            events.next_named().await,
            ("ADDED".to_owned(), format!("m{number}"))
        );
    }
    // A version that one copy has just given can be watched from at the other.
    let (_, made) = here.post(MAPS, &json!({"metadata": {"name": "newest"}})).await;
    let version = made["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version")
        .to_owned();
    let mut events = Client::admin(&other)
        .await
        .watch(&format!("{MAPS}?watch=true&resourceVersion={version}"))
        .await;
    here.json(Method::DELETE, &format!("{MAPS}/newest"), None).await;
    assert_eq!(
        events.next_named().await,
        ("DELETED".to_owned(), "newest".to_owned())
    );

    let (first, second) = tokio::join!(
        create_services(Client::admin(&one).await, "one"),
        create_services(Client::admin(&other).await, "other")
    );
    let all: BTreeSet<&String> = first.iter().chain(&second).collect();
    assert_eq!(all.len(), first.len() + second.len(), "{first:?} {second:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_addresses_and_controllers_are_of_all_copies() {
    let Some(cluster) = EtcdCluster::start(1) else {
        return;
    };
    let one = start(&cluster, TempDir::new().expect("a directory"));
    let other = start(&cluster, with_authority_of(one.path()));
    let (mut here, mut there) = (Client::admin(&one).await, Client::admin(&other).await);

    let review = json!({"spec": {"user": "ann", "resourceAttributes": {"verb": "list", "resource": "pods"}}});
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let (_, answer) = there.post(reviews, &review).await;
    assert_eq!(answer["status"]["allowed"], false, "{answer}");
    let binding = json!({"metadata": {"name": "made"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "ann"}]});
    assert_eq!(
        here.post(&format!("{RBAC}/clusterrolebindings"), &binding)
            .await
            .0,
        201
    );
    let end = Instant::now() + Duration::from_secs(10);
    while there.post(reviews, &review).await.1["status"]["allowed"] != true {
        assert!(Instant::now() < end, "a binding counts at every copy");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let ports = |endpoints: &Value| -> BTreeSet<u64> {
        let subsets = endpoints["subsets"].as_array().into_iter().flatten();
        subsets
            .filter_map(|subset| subset["ports"][0]["port"].as_u64())
            .collect()
    };
    let both = BTreeSet::from([one.address.port().into(), other.address.port().into()]);
    eventually(&mut here, ENDPOINTS, |endpoints| ports(endpoints) == both).await;

    let holder = |lease: &Value| {
        lease["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let lease = eventually(&mut here, LEASE, |lease| !holder(lease).is_empty()).await;
    let first = holder(&lease);
    let (leader, mut left, follower) = if first.starts_with(&one.address.to_string()) {
        (one, there, other)
    } else {
        (other, here, one)
    };
    drop(leader);
    eventually(&mut left, LEASE, |lease| {
        holder(lease).starts_with(&follower.address.to_string())
    })
    .await;
    let only = BTreeSet::from([follower.address.port().into()]);
    eventually(&mut left, ENDPOINTS, |endpoints| ports(endpoints) == only).await;
    // What only controllers do is done by the one that is left.
    let (code, _) = left
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "short"}}))
        .await;
    assert_eq!(code, 201);
    left.json(Method::DELETE, "/api/v1/namespaces/short", None).await;
    eventually(&mut left, "/api/v1/namespaces/short", |answer| {
        answer["code"] == 404
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_with_another_authority_or_a_wish_to_begin_anew_is_refused() {
    let Some(cluster) = EtcdCluster::start(1) else {
        return;
    };
    let one = start(&cluster, TempDir::new().expect("a directory"));
    let bind = async |directory: &TempDir, new_store| {
        let mut config = Config::new(([127, 0, 0, 1], 0).into(), directory.path());
        config.etcd = Some(cluster.url().parse().expect("members"));
        config.new_store = new_store;
        Server::bind(config).await
    };
    let stranger = TempDir::new().expect("a directory");
    let refused = bind(&stranger, false)
        .await
        .expect_err("its authority is its own");
    assert!(matches!(refused, ServeError::OtherAuthority), "{refused}");
    let with_key = with_authority_of(one.path());
    std::fs::remove_file(with_key.path().join("pki/sa.key")).expect("removed");
    let refused = bind(&with_key, false).await.expect_err("its tokens are its own");
    assert!(matches!(refused, ServeError::OtherAuthority), "{refused}");
    let refused = bind(&with_authority_of(one.path()), true)
        .await
        .expect_err("others use it");
    assert!(matches!(refused, ServeError::NewEtcd), "{refused}");
}
