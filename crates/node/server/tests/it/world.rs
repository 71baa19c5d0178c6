//! A node with a scripted runtime, its endpoint, and an authority that signs certificates for clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use pulselet_agent::{DataDir, Node, NodeHandle, NodeOptions, Origin};
use pulselet_model::{GateSet, Pod, Profile, admit_create};
use pulselet_node_server::{CallerReview, NodeCaller, NodeServer, Options, Tls, serve};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_vocabulary::PodName;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// Far longer than anything here takes, also on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A client's certificate and key.
pub(crate) type Identity = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    pub(crate) fn client(&self, name: &str, group: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        (certificate.der().clone(), key)
    }
}

pub(crate) struct World {
    pub(crate) runtime: FakeRuntime,
    pub(crate) node: NodeHandle,
    pub(crate) authority: Authority,
    pub(crate) address: SocketAddr,
    pub(crate) server: NodeServer,
    _directory: TempDir,
}

impl World {
    /// With a pod `web` in `default` whose container `app` runs.
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = FakeRuntime::new(RuntimeFaults::default());
        let data = DataDir::claim(directory.path().join("data")).expect("nobody else has it");
        let node = Node::start(NodeOptions::new(data, Arc::new(runtime.clone())))
            .await
            .expect("the node starts");
        let authority = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let tls = Tls::self_signed(&["n1"], &[address.ip()], authority.pem.as_str()).expect("a certificate");
        let options = Options {
            node: node.clone(),
            runtime: Arc::new(runtime.clone()),
            listener,
            tls,
            callers: Some(Arc::new(ScriptedReview)),
        };
        let server = serve(options).expect("it is served");
        assert_eq!(server.address(), address);
        let world = Self {
            runtime,
            node,
            authority,
            address,
            server,
            _directory: directory,
        };
        world.add(pod("web")).await;
        world
    }

    async fn add(&self, pod: Pod) {
        let added = self
            .node
            .add_pod(pod, Origin::Run)
            .await
            .expect("the node is there");
        added.expect("the pod is taken");
        eventually("the container runs", async || {
            matches!(
                self.node.container(&PodName::new("default", "web"), "app").await,
                Ok(Ok(_))
            )
        })
        .await;
    }

    pub(crate) fn administrator(&self) -> Identity {
        self.authority.client("admin", "system:masters")
    }

    /// Waits until no command runs and no port is forwarded.
    pub(crate) async fn until_nothing_is_open(&self) {
        eventually("everything has ended", async || self.runtime.open_streams() == 0).await;
    }
}

/// An API that knows one token, whose bearer may read metrics, and one user, who may read pods.
#[derive(Debug)]
struct ScriptedReview;

impl CallerReview for ScriptedReview {
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<NodeCaller>> {
        let caller = NodeCaller {
            user: "system:serviceaccount:monitoring:prometheus".to_owned(),
            ..NodeCaller::default()
        };
        Box::pin(async move { (token == "known").then_some(caller) })
    }

    fn allows<'a>(&'a self, caller: &'a NodeCaller, verb: &'a str, part: &'a str) -> BoxFuture<'a, bool> {
        let allowed = match caller.user.as_str() {
            "system:serviceaccount:monitoring:prometheus" => part == "metrics",
            "reader" => part == "proxy" && caller.groups.contains(&"system:authenticated".to_owned()),
            _ => false,
        };
        Box::pin(async move { allowed && verb == "get" })
    }
}

fn pod(name: &str) -> Pod {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "image": "app:1"}], "terminationGracePeriodSeconds": 1},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    admit_create(pod, Profile::Pulselet, GateSet::ALL)
        .expect("the pod is valid")
        .pod
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let search = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, search)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}
