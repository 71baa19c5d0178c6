//! A node on a scripted runtime, its dashboard, and a browser of a few lines.

use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::control::ControlClient;
use pulselet_agent::{DataDir, Layout, Node, NodeHandle, NodeOptions, Origin};
use pulselet_dashboard::{Dashboard, DashboardSource};
use pulselet_model::{GateSet, Profile, admit_create};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Far longer than anything here takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct World {
    _directory: TempDir,
    node: NodeHandle,
    dashboard: Dashboard,
    address: String,
    pub(crate) cookie: String,
}

/// An answer as it came.
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = pairs.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let runtime = Arc::new(FakeRuntime::new(RuntimeFaults::default()));
        let options = NodeOptions::new(DataDir::claim(data.clone()).unwrap(), runtime);
        let node = Node::start(options).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = ControlClient::new(Layout::new(data).socket());
        let dashboard = Dashboard::start(listener, DashboardSource::Agent(client)).unwrap();
        Self {
            _directory: directory,
            node,
            dashboard,
            address,
            cookie: String::new(),
        }
    }

    /// A dashboard whose cookie this browser has.
    pub(crate) async fn opened() -> Self {
        let mut world = Self::start().await;
        let opened = world.get(&world.secret_path(), &[]).await;
        let cookie = opened.header("set-cookie").unwrap();
        cookie.split(';').next().unwrap().clone_into(&mut world.cookie);
        world
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Path and query of the address that the dashboard gives out.
    pub(crate) fn secret_path(&self) -> String {
        let url = self.dashboard.url();
        let path = url.strip_prefix(&self.origin()).unwrap();
        assert!(path.starts_with("/?secret="), "{path}");
        path.to_owned()
    }

    pub(crate) async fn add_pod(&self) {
        let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 10});
        let app = json!({"name": "app", "image": "app:1", "livenessProbe": probe});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [app]}});
        let pod = serde_json::from_value(pod).unwrap();
        let pod = admit_create(pod, Profile::Pulselet, GateSet::ALL).unwrap().pod;
        self.node.add_pod(pod, Origin::Detached).await.unwrap().unwrap();
    }

    pub(crate) async fn restart_pod(&self) {
        let pod = PodName::new("default", "web");
        self.node.restart(&pod, None).await.unwrap().unwrap();
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.request("GET", path, headers, "").await
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut stream = self.send(method, path, headers, body).await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
        read.unwrap().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text.extend(["Host: ", &self.address, "\r\n"]);
        }
        if !self.cookie.is_empty() {
            text.extend(["Cookie: ", &self.cookie, "\r\n"]);
        }
        for (name, value) in headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        text.push_str("\r\n");
        text.push_str(body);
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn events(&self, last: Option<&str>) -> Events {
        let headers: Vec<_> = last.map(|id| ("Last-Event-ID", id)).into_iter().collect();
        let stream = self.send("GET", "/api/events", &headers, "").await;
        Events {
            stream,
            text: String::new(),
        }
    }
}

/// A stream of events as it comes.
pub(crate) struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    /// Everything so far, once it has this text.
    pub(crate) async fn until(&mut self, what: &str) -> String {
        let search = async {
            while !self.text.contains(what) {
                let mut buffer = [0; 4096];
                let count = self.stream.read(&mut buffer).await.unwrap();
                assert!(count > 0, "the stream ended: {}", self.text);
                self.text.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        };
        let found = tokio::time::timeout(PATIENCE, search).await;
        assert!(found.is_ok(), "no {what} in {}", self.text);
        self.text.clone()
    }
}
