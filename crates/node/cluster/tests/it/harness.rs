//! An API server and a node, each of which can go away and come back.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pulselet_agent::{DataDir, Feed, Node, NodeDuties, NodeFacts, NodeHandle, NodeOptions, Shutdown};
use pulselet_apiserver::{Config, Server};
use pulselet_cluster::{ApiClient, ApiObjects, Joined, Kubeconfig, Machine, join};
use pulselet_controllers::{ControllerOptions, Controllers};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Far longer than anything here takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);
pub(crate) const NODE: &str = "n1";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

/// The serial number of the certificate in a kubeconfig.
pub(crate) fn serial(kubeconfig: &std::path::Path) -> String {
    use base64::Engine as _;
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("client-certificate-data: "));
    let pem = base64::engine::general_purpose::STANDARD.decode(line.expect("a certificate"));
    let der = CertificateDer::from_pem_slice(&pem.expect("base64")).expect("a certificate");
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).expect("a certificate");
    certificate.tbs_certificate.raw_serial_as_string()
}

/// A running API server.
pub(crate) struct Api {
    address: SocketAddr,
    directory: PathBuf,
    pub(crate) node_kubeconfig: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Api {
    async fn start(directory: PathBuf, listen: SocketAddr) -> Self {
        let config = Config::new(listen, &directory);
        let server = Server::bind(config).await.expect("the server starts");
        let controllers = Controllers::start(
            &server.client(),
            ControllerOptions {
                bind_pods: true,
                ..ControllerOptions::default()
            },
        );
        let node_kubeconfig = server.write_node_kubeconfig(NODE).expect("a kubeconfig");
        let address = server.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async {
            server
                .run(async {
                    let _ = stopped.await;
                })
                .await;
            controllers.stop().await;
        });
        Self {
            address,
            directory,
            node_kubeconfig,
            stop: Some(stop),
            task,
        }
    }

    /// Where its data are.
    pub(crate) fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    async fn stop(mut self) -> (PathBuf, SocketAddr) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        self.task.await.expect("the server ends in order");
        (self.directory, self.address)
    }

    /// One request as the administrator; the code and the answer.
    pub(crate) async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut roots = rustls::RootCertStore::empty();
        let authority =
            CertificateDer::from_pem_file(self.directory.join("pki/ca.crt")).expect("the authority");
        roots.add(authority).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tokens = std::fs::read_to_string(self.directory.join("tokens.csv")).expect("tokens");
        let token = tokens.split(',').next().expect("a token");
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(ServerName::from(self.address.ip()), stream)
            .await
            .expect("a handshake");
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("http");
        tokio::spawn(connection);
        let content_type = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", content_type)
            .body(Full::new(Bytes::from(
                body.map(Value::to_string).unwrap_or_default(),
            )))
            .expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        let code = answer.status().as_u16();
        let bytes = answer
            .into_body()
            .collect()
            .await
            .expect("a whole answer")
            .to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.request(Method::GET, path, None).await
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> Value {
        let (code, answer) = self.request(Method::POST, path, Some(object)).await;
        assert_eq!(code, 201, "{answer}");
        answer
    }

    pub(crate) async fn delete(&self, path: &str, grace: Option<u32>) {
        let query = grace
            .map(|grace| format!("?gracePeriodSeconds={grace}"))
            .unwrap_or_default();
        let (code, answer) = self
            .request(Method::DELETE, &format!("{path}{query}"), None)
            .await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Waits until an object fits, and returns it.
    pub(crate) async fn until(&self, what: &str, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            let (code, object) = self.get(path).await;
            (code == 200 && fits(&object)).then_some(object)
        })
        .await
    }

    pub(crate) async fn until_gone(&self, path: &str) {
        eventually("the object is gone", || async {
            (self.get(path).await.0 == 404).then_some(())
        })
        .await;
    }

    pub(crate) async fn until_ready(&self, name: &str) -> Value {
        self.until("a ready pod", &format!("{PODS}/{name}"), |pod| {
            condition(pod, "Ready") == "True"
        })
        .await
    }
}

/// A running node that is joined.
pub(crate) struct Agent {
    pub(crate) node: NodeHandle,
    /// Where its pods' objects come from.
    pub(crate) objects: ApiObjects,
    _joined: Joined,
}

/// Both, with what they leave behind when they go.
pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) runtime: FakeRuntime,
    pub(crate) api: Option<Api>,
    pub(crate) agent: Option<Agent>,
    gone_api: Option<(PathBuf, SocketAddr)>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let mut world = Self {
            directory: tempfile::tempdir().expect("a directory"),
            runtime: FakeRuntime::new(RuntimeFaults::default()),
            api: None,
            agent: None,
            gone_api: None,
        };
        let data = world.directory.path().join("api");
        world.api = Some(Api::start(data, ([127, 0, 0, 1], 0).into()).await);
        world.start_agent().await;
        world
    }

    pub(crate) fn api(&self) -> &Api {
        self.api.as_ref().expect("the API is there")
    }

    pub(crate) fn node(&self) -> &NodeHandle {
        &self.agent.as_ref().expect("the agent is there").node
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    pub(crate) async fn stop_api(&mut self) {
        let api = self.api.take().expect("the API is there");
        self.gone_api = Some(api.stop().await);
    }

    pub(crate) async fn start_api(&mut self) {
        let (directory, address) = self.gone_api.take().expect("it was there before");
        self.api = Some(Api::start(directory, address).await);
    }

    pub(crate) async fn start_agent(&mut self) {
        std::fs::create_dir_all(self.manifests()).expect("a directory");
        let kubeconfig = self.directory.path().join(format!("api/node-{NODE}.kubeconfig"));
        let client = ApiClient::new(Kubeconfig::load(&kubeconfig).expect("a kubeconfig"));
        let data = DataDir::claim(self.directory.path().join("node")).expect("nobody else has it");
        let runtime = Arc::new(self.runtime.clone());
        let facts = NodeFacts {
            name: NODE.to_owned(),
            ..NodeFacts::detect()
        };
        let feed = Feed::default();
        let mut options = NodeOptions::new(data, Arc::clone(&runtime) as _);
        options.facts = facts.clone();
        options.feed = Some(feed.clone());
        options.joined = true;
        options.manifests = Some(self.manifests());
        options.static_suffix = format!("-{NODE}");
        let services = self.directory.path().join("services.json");
        let objects = ApiObjects::new(client.clone()).with_services_in(services);
        options.objects = Arc::new(objects.clone());
        // What reaches a volume was told by a watch.
        options.object_pause = Some(Duration::from_hours(1));
        let node = Node::start(options).await.expect("the node starts");
        let machine = Machine {
            facts,
            duties: NodeDuties::default(),
            runtime,
            data_dir: self.directory.path().to_owned(),
            endpoint: ([127, 0, 0, 1], 10250).into(),
        };
        let joined = join(&client, node.clone(), feed, &objects, machine);
        self.agent = Some(Agent {
            node,
            objects,
            _joined: joined,
        });
    }

    /// Ends the agent; its containers run on.
    pub(crate) async fn stop_agent(&mut self) {
        let agent = self.agent.take().expect("the agent is there");
        agent.node.shutdown(Shutdown::Leave).await;
    }

    pub(crate) async fn run(&self, pod: &Value) -> Value {
        self.api().create(PODS, pod).await
    }
}

/// A pod bound to the node, with one container `app` whose further fields are given.
pub(crate) fn pod(name: &str, container: &Value) -> Value {
    let mut app = json!({"name": "app", "image": "app:1"});
    let fields = container.as_object().expect("fields of a container");
    app.as_object_mut().expect("an object").extend(fields.clone());
    json!({
        "metadata": {"name": name},
        "spec": {"nodeName": NODE, "containers": [app], "terminationGracePeriodSeconds": 1},
    })
}

pub(crate) fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found
        .and_then(|it| it["status"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// Waits until something is there.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let search = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, search)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}
