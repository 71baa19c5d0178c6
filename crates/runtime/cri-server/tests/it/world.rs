//! A server with a scripted runtime, and a client of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use pulselet_cri_server::{CriServer, CriServerOptions};
use pulselet_cri_wire::v1;
use pulselet_cri_wire::v1::image_service_client::ImageServiceClient;
use pulselet_cri_wire::v1::runtime_service_client::RuntimeServiceClient;
use pulselet_runtime::ImageSummary;
use pulselet_runtime_fake::{FakeRuntime, ImageScript, RuntimeFaults};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

pub(crate) const IMAGE: &str = "registry.example/app:1";
/// How long anything may take to happen; nothing takes a tenth of it on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct World {
    directory: tempfile::TempDir,
    pub(crate) runtime: FakeRuntime,
    server: Option<CriServer>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let runtime = FakeRuntime::new(RuntimeFaults::default());
        let image = ImageSummary {
            id: "sha256:1".into(),
            tags: vec![IMAGE.into()],
            digests: vec!["registry.example/app@sha256:2".into()],
            ..ImageSummary::default()
        };
        runtime.script_image(IMAGE, ImageScript::Present(image));
        let mut world = Self {
            directory: tempfile::tempdir().expect("a directory"),
            runtime,
            server: None,
        };
        world.start().await;
        world
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("cri.sock")
    }

    pub(crate) fn options(&self) -> CriServerOptions {
        CriServerOptions {
            runtime: Arc::new(self.runtime.clone()),
            socket: self.socket(),
            stream_address: ([127, 0, 0, 1], 0).into(),
            log_root: self.directory.path().join("logs"),
            pinned_images: vec![IMAGE.to_owned()],
        }
    }

    pub(crate) async fn start(&mut self) {
        self.server = Some(CriServer::start(self.options()).await.expect("listens"));
    }

    pub(crate) async fn stop(&mut self) {
        self.server.take().expect("runs").stop().await;
    }

    /// A connection that is made at the first call.
    pub(crate) fn channel(&self) -> Channel {
        let socket = self.socket();
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
    }

    pub(crate) fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel())
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel())
    }

    /// Runs a sandbox with one running container of this name.
    pub(crate) async fn run(&self, name: &str) -> (String, String) {
        let mut client = self.client();
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox(name)),
            ..v1::RunPodSandboxRequest::default()
        };
        let pod = client.run_pod_sandbox(request).await.expect("runs");
        let pod = pod.into_inner().pod_sandbox_id;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(container(name)),
            sandbox_config: Some(sandbox(name)),
        };
        let made = client.create_container(request).await.expect("creates");
        let id = made.into_inner().container_id;
        let request = v1::StartContainerRequest {
            container_id: id.clone(),
        };
        client.start_container(request).await.expect("starts");
        (pod, id)
    }
}

pub(crate) fn sandbox(name: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        labels: [("app".to_owned(), name.to_owned())].into(),
        annotations: [("note".to_owned(), "kept".to_owned())].into(),
        ..v1::PodSandboxConfig::default()
    }
}

pub(crate) fn container(name: &str) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: name.into(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: IMAGE.into(),
            ..v1::ImageSpec::default()
        }),
        labels: [("tier".to_owned(), name.to_owned())].into(),
        ..v1::ContainerConfig::default()
    }
}
