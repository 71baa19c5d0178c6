//! A small CRI server in the test's own process: it knows stop signals, and can be told to hang.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use pulselet_cri_wire::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use pulselet_cri_wire::{v1, v1alpha2};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

/// What the server has and what it was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Server(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Calls that make something wait while this is true.
    hangs: watch::Sender<bool>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            hangs: watch::Sender::new(false),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    sandboxes: BTreeMap<String, v1::PodSandboxConfig>,
    containers: BTreeMap<String, Made>,
    stops: Vec<(String, i64)>,
}

#[derive(Debug, Clone)]
struct Made {
    sandbox: String,
    config: v1::ContainerConfig,
    state: v1::ContainerState,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no test panics while it holds this")
    }

    pub(crate) fn hang(&self, hang: bool) {
        self.0.hangs.send_replace(hang);
    }

    async fn wait(&self) {
        let mut hangs = self.0.hangs.subscribe();
        let _ = hangs.wait_for(|hangs| !hangs).await;
    }

    /// The configuration of the only container.
    pub(crate) fn container(&self) -> v1::ContainerConfig {
        let state = self.state();
        assert_eq!(state.containers.len(), 1);
        let made = state.containers.values().next();
        made.expect("counted").config.clone()
    }

    /// What containers were stopped with, in seconds.
    pub(crate) fn stops(&self) -> Vec<i64> {
        self.state().stops.iter().map(|(_, seconds)| *seconds).collect()
    }

    /// Lets all containers end.
    pub(crate) fn end_all(&self) {
        for made in self.state().containers.values_mut() {
            made.state = v1::ContainerState::ContainerExited;
        }
    }

    /// Listens on a socket until the handle is dropped; connections end with it.
    pub(crate) fn listen(&self, path: &Path) -> AbortOnDropHandle<()> {
        let service = RuntimeServiceServer::new(self.clone());
        serve(path, move || service.clone())
    }
}

/// A server that speaks only what came before v1.
#[derive(Debug, Clone)]
pub(crate) struct OldServer;

impl OldServer {
    pub(crate) fn listen(path: &Path) -> AbortOnDropHandle<()> {
        use v1alpha2::runtime_service_server::RuntimeServiceServer;
        serve(path, || RuntimeServiceServer::new(Self))
    }
}

#[tonic::async_trait]
impl v1alpha2::runtime_service_server::RuntimeService for OldServer {
    async fn version(
        &self,
        _: Request<v1alpha2::VersionRequest>,
    ) -> Result<Response<v1alpha2::VersionResponse>, Status> {
        Ok(Response::new(v1alpha2::VersionResponse {
            runtime_name: "old".into(),
            runtime_version: "1.4".into(),
            ..v1alpha2::VersionResponse::default()
        }))
    }
}

fn serve<S, F>(path: &Path, service: impl Fn() -> S + Send + 'static) -> AbortOnDropHandle<()>
where
    S: tower::Service<
            http::Request<hyper::body::Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future = F,
        > + Clone
        + Send
        + 'static,
    F: Future<Output = Result<http::Response<tonic::body::Body>, Infallible>> + Send + 'static,
{
    let listener = UnixListener::bind(path).expect("the path is free");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service());
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            connections.spawn(async move {
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }))
}

#[expect(clippy::unnecessary_wraps, reason = "what a call answers")]
fn answer<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl RuntimeService for Server {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        answer(v1::VersionResponse {
            runtime_name: "small".into(),
            runtime_version: "v1.2.3".into(),
            ..v1::VersionResponse::default()
        })
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        let config = request.into_inner().config.unwrap_or_default();
        let mut state = self.state();
        let pod_sandbox_id = format!("s{}", state.sandboxes.len());
        state.sandboxes.insert(pod_sandbox_id.clone(), config);
        answer(v1::RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let state = self.state();
        let config = state
            .sandboxes
            .get(&id)
            .ok_or_else(|| Status::not_found("no such sandbox"))?;
        answer(v1::PodSandboxStatusResponse {
            status: Some(v1::PodSandboxStatus {
                id,
                metadata: config.metadata.clone(),
                labels: config.labels.clone(),
                annotations: config.annotations.clone(),
                ..v1::PodSandboxStatus::default()
            }),
            ..v1::PodSandboxStatusResponse::default()
        })
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        answer(v1::ListPodSandboxResponse::default())
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Result<Response<v1::CreateContainerResponse>, Status> {
        self.wait().await;
        let request = request.into_inner();
        let mut state = self.state();
        let container_id = format!("c{}", state.containers.len());
        let made = Made {
            sandbox: request.pod_sandbox_id,
            config: request.config.unwrap_or_default(),
            state: v1::ContainerState::ContainerCreated,
        };
        state.containers.insert(container_id.clone(), made);
        answer(v1::CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Result<Response<v1::StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        if let Some(made) = self.state().containers.get_mut(&id) {
            made.state = v1::ContainerState::ContainerRunning;
        }
        answer(v1::StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        state.stops.push((request.container_id.clone(), request.timeout));
        if let Some(made) = state.containers.get_mut(&request.container_id) {
            made.state = v1::ContainerState::ContainerExited;
        }
        answer(v1::StopContainerResponse {})
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let wanted = request.into_inner().filter.unwrap_or_default().label_selector;
        let state = self.state();
        let ours = state.containers.iter().filter(|(_, made)| {
            wanted
                .iter()
                .all(|(key, value)| made.config.labels.get(key) == Some(value))
        });
        let containers = ours.map(|(id, made)| v1::Container {
            id: id.clone(),
            pod_sandbox_id: made.sandbox.clone(),
            metadata: made.config.metadata.clone(),
            state: made.state.into(),
            ..v1::Container::default()
        });
        answer(v1::ListContainersResponse {
            containers: containers.collect(),
        })
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let v1::ContainerStatusRequest {
            container_id: id,
            verbose,
        } = request.into_inner();
        let state = self.state();
        let made = state
            .containers
            .get(&id)
            .ok_or_else(|| Status::not_found("no such container"))?;
        // Every container is this process.
        let info = format!(r#"{{"sandboxID":"x","pid":{}}}"#, std::process::id());
        answer(v1::ContainerStatusResponse {
            info: verbose.then(|| ("info".to_owned(), info)).into_iter().collect(),
            status: Some(v1::ContainerStatus {
                id,
                metadata: made.config.metadata.clone(),
                state: made.state.into(),
                labels: made.config.labels.clone(),
                annotations: made.config.annotations.clone(),
                stop_signal: match made.config.stop_signal() {
                    v1::Signal::RuntimeDefault => v1::Signal::Sigterm.into(),
                    signal => signal.into(),
                },
                ..v1::ContainerStatus::default()
            }),
        })
    }

    async fn exec_sync(
        &self,
        _: Request<v1::ExecSyncRequest>,
    ) -> Result<Response<v1::ExecSyncResponse>, Status> {
        self.wait().await;
        answer(v1::ExecSyncResponse::default())
    }
}
