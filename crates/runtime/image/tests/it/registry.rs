//! Registries for tests: a real one, a proxy in front of it that cuts connections, and one that follows a script.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pulselet_image::{Digest, Reference};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// The password `secret`, as htpasswd writes it.
const HTPASSWD: &str = "user:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

/// Requests need a crypto provider, plain ones too.
pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// Debian's `docker-registry`, on a free port.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) directory: TempDir,
    http: reqwest::Client,
    password: bool,
}

impl Server {
    /// None where it is not installed; in CI that is a failure.
    pub(crate) fn start(password: bool) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let mut config = json!({
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": path("data")}},
            "http": {"addr": "127.0.0.1:0", "secret": "test"},
        });
        if password {
            std::fs::write(path("htpasswd"), HTPASSWD).unwrap();
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": path("htpasswd")}});
        }
        std::fs::write(path("config.yml"), config.to_string()).unwrap();
        let spawned = Command::new("docker-registry")
            .args(["serve", &path("config.yml")])
            .env_clear()
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        if !pulselet_testing::requires("docker-registry", spawned.is_ok()) {
            return None;
        }
        let mut process = spawned.unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = log
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split("listening on ")
                    .nth(1)?
                    .split('"')
                    .next()?
                    .parse()
                    .ok()
            })
            .expect("the registry says where it listens");
        std::thread::spawn(move || log.for_each(drop));
        let http = client();
        Some(Self {
            process,
            address,
            directory,
            http,
            password,
        })
    }

    fn request(&self, method: reqwest::Method, url: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, url);
        if self.password {
            request.basic_auth("user", Some("secret"))
        } else {
            request
        }
    }

    /// Puts a blob into the repository `test`, and returns its descriptor.
    pub(crate) async fn push_blob(&self, bytes: Vec<u8>) -> Value {
        let digest = Digest::of(&bytes);
        let size = bytes.len();
        let url = format!("http://{}/v2/test/blobs/uploads/", self.address);
        let answer = self.request(reqwest::Method::POST, &url).send().await.unwrap();
        let location = answer.headers()["location"].to_str().unwrap();
        let url = format!("{location}&digest={digest}");
        let answer = self
            .request(reqwest::Method::PUT, &url)
            .header("content-type", "application/octet-stream")
            .body(bytes)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 201);
        json!({"mediaType": "application/octet-stream", "digest": digest, "size": size})
    }

    async fn push_document(&self, name: &str, media_type: &str, document: &Value) -> Value {
        let bytes = document.to_string();
        let digest = Digest::of(bytes.as_bytes());
        let name = if name.is_empty() {
            digest.to_string()
        } else {
            name.to_owned()
        };
        let size = bytes.len();
        let url = format!("http://{}/v2/test/manifests/{name}", self.address);
        let answer = self
            .request(reqwest::Method::PUT, &url)
            .header("content-type", media_type)
            .body(bytes)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 201);
        json!({"mediaType": media_type, "digest": digest, "size": size})
    }

    /// Puts an image with these layers, as they are, into the repository `test`.
    pub(crate) async fn push_image(&self, tag: &str, config: &Value, layers: Vec<Vec<u8>>) -> Value {
        let mut config = self.push_blob(config.to_string().into_bytes()).await;
        config["mediaType"] = json!("application/vnd.oci.image.config.v1+json");
        let mut descriptors = Vec::new();
        for layer in layers {
            let mut layer = self.push_blob(layer).await;
            layer["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+gzip");
            descriptors.push(layer);
        }
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": descriptors});
        self.push_document(tag, MANIFEST_TYPE, &manifest).await
    }

    pub(crate) async fn push_index(&self, tag: &str, manifests: Vec<Value>) -> Value {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests});
        self.push_document(tag, INDEX_TYPE, &index).await
    }

    /// Where the registry has the content of a blob.
    pub(crate) fn blob_file(&self, descriptor: &Value) -> std::path::PathBuf {
        let digest: Digest = descriptor["digest"].as_str().unwrap().parse().unwrap();
        let hex = digest.hex();
        let blobs = "data/docker/registry/v2/blobs/sha256";
        self.directory
            .path()
            .join(blobs)
            .join(&hex[..2])
            .join(hex)
            .join("data")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn reference(address: SocketAddr, rest: &str) -> Reference {
    format!("{address}/test{rest}").parse().unwrap()
}

/// What happens to a connection that brings back too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Cut,
    /// Nothing comes any more, but it stays open.
    Stall,
}

/// Passes bytes on to a server, and spoils connections that bring back more than it likes.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// Everything the client sent.
    requests: Arc<Mutex<Vec<u8>>>,
    /// Bytes that came back.
    pub(crate) passed: Arc<AtomicUsize>,
    /// Is told about each connection that was spoilt.
    pub(crate) spoilt: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// The first `faults` connections that bring back more than `after` bytes have the fault there.
    pub(crate) async fn start(server: SocketAddr, fault: Fault, faults: usize, after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let passed = Arc::new(AtomicUsize::new(0));
        let faults = Arc::new(AtomicUsize::new(faults));
        let spoilt = Arc::new(Notify::new());
        let (log, count, told) = (Arc::clone(&requests), Arc::clone(&passed), Arc::clone(&spoilt));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (log, count) = (Arc::clone(&log), Arc::clone(&count));
                let (faults, told) = (Arc::clone(&faults), Arc::clone(&told));
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(server).await {
                        let spoil = |brought| {
                            let one_less = |left: usize| left.checked_sub(1);
                            let spoilt = brought > after
                                && faults
                                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
                                    .is_ok();
                            spoilt.then(|| {
                                told.notify_one();
                                fault
                            })
                        };
                        pass(client, server, &log, &count, spoil).await;
                    }
                });
            }
        });
        Self {
            address,
            requests,
            passed,
            spoilt,
            task,
        }
    }

    /// Where downloads went on.
    pub(crate) fn ranges(&self) -> Vec<u64> {
        let requests = self.requests.lock().unwrap();
        String::from_utf8_lossy(&requests)
            .lines()
            .filter_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("range: bytes=")?
                    .strip_suffix('-')?
                    .parse()
                    .ok()
            })
            .collect()
    }

    /// How many blobs were asked for.
    pub(crate) fn blob_requests(&self) -> usize {
        let requests = self.requests.lock().unwrap();
        String::from_utf8_lossy(&requests).matches("/blobs/").count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    log: &Mutex<Vec<u8>>,
    count: &AtomicUsize,
    spoil: impl Fn(usize) -> Option<Fault>,
) {
    let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    let mut brought = 0;
    loop {
        tokio::select! {
            Ok(read) = client.read(&mut up) => {
                log.lock().unwrap().extend_from_slice(&up[..read]);
                if read == 0 || server.write_all(&up[..read]).await.is_err() {
                    return;
                }
            }
            Ok(read) = server.read(&mut down) => {
                brought += read;
                match spoil(brought) {
                    None => {}
                    Some(Fault::Cut) => return,
                    Some(Fault::Stall) => std::future::pending().await,
                }
                if read == 0 || client.write_all(&down[..read]).await.is_err() {
                    return;
                }
                count.fetch_add(read, Ordering::Relaxed);
            }
            else => return,
        }
    }
}

/// A server that answers each request as a function says: its head in, a whole answer out.
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Script {
    pub(crate) async fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let _ = client();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let head = read_head(&mut client).await;
                    let _ = client.write_all(&answer(&head)).await;
                    let _ = client.shutdown().await;
                    // Until the client has read it: closing with something unread would take it away.
                    let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
                });
            }
        });
        Self { address, task }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A whole answer of a server that closes its connection.
pub(crate) fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}
