//! Answers on the socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use pulselet_runtime::{ExecOptions, Runtime};
use pulselet_vocabulary::{ParsePodNameError, PodName};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{ControlRefusal, NodeView, exec, queries, query};
use crate::agent::{AddError, LogError, PodView, StreamError, ports};
use crate::endpoints::http::{Answering, Body, full};
use crate::handle::{Gone, NodeHandle, StartError, StopError};
use crate::pod::identity::Origin;
use crate::publish::lines::GUEST_BACKLOG;
use crate::state::handed_objects::{HandedObject, HandedObjects, KeepObjectsError};
use crate::state::stopped::{SaveStoppedError, StoppedPod};
use crate::state::store::NodeStoreError;

/// Bytes of a pod that are read: twice what a manifest may have, since defaults are filled in.
const MAX_POD: usize = 2 * pulselet_model::MAX_DOCUMENT_BYTES;
/// Bytes of config maps and secrets that are read at a time: each may have a mebibyte.
const MAX_OBJECTS: usize = 64 * 1024 * 1024;
/// Commands in containers at a time.
const MAX_COMMANDS: usize = 64;
const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";

#[derive(Debug)]
pub(crate) struct Control {
    node: NodeHandle,
    /// The node as it was started.
    about: NodeView,
    runtime: Arc<dyn Runtime>,
    objects: Arc<HandedObjects>,
    /// One for each command that may still be begun.
    commands: Arc<Semaphore>,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
enum ControlError {
    #[error("there is nothing at {0}")]
    NoSuchPath(String),
    #[error("cannot read the request: {0}")]
    ReadBody(Box<dyn std::error::Error + Send + Sync>),
    #[error("the pod cannot be decoded: {0}")]
    DecodePod(serde_json::Error),
    #[error("the objects cannot be decoded: {0}")]
    DecodeObjects(serde_json::Error),
    #[error(transparent)]
    KeepObjects(#[from] KeepObjectsError),
    #[error("{key} is not a number of seconds: {value:?}")]
    ReadSeconds { key: &'static str, value: String },
    #[error(transparent)]
    ReadPodName(#[from] ParsePodNameError),
    #[error(transparent)]
    Add(#[from] AddError),
    #[error(transparent)]
    Pod(#[from] crate::NoSuchPod),
    #[error(
        "pod {pod} belongs to the API, which would run it again: kubectl delete pod --namespace {} {}",
        pod.namespace,
        pod.name
    )]
    OfApi { pod: PodName },
    #[error(transparent)]
    Stop(#[from] StopError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Restart(#[from] StreamError),
    #[error("the command is not text")]
    ReadCommand,
    #[error("there is no command: write it behind `--`")]
    NoCommand,
    #[error("{MAX_COMMANDS} commands run in containers already; wait until one of them has ended")]
    TooManyCommands,
    #[error("cannot run the command: {0}")]
    Exec(pulselet_runtime::Error),
    #[error(transparent)]
    Stopped(#[from] SaveStoppedError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    #[error(transparent)]
    Gone(#[from] Gone),
}

impl ControlError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath(_)
            | Self::Pod(_)
            | Self::Log(LogError::Pod(_))
            | Self::Stop(StopError::Pod(_))
            | Self::Start(StartError::Pod(_))
            | Self::Restart(StreamError::Pod(_)) => StatusCode::NOT_FOUND,
            Self::ReadBody(_)
            | Self::DecodePod(_)
            | Self::DecodeObjects(_)
            | Self::ReadSeconds { .. }
            | Self::ReadPodName(_)
            | Self::ReadCommand
            | Self::NoCommand
            | Self::Exec(_)
            | Self::Log(_) => StatusCode::BAD_REQUEST,
            Self::Add(AddError::Plan(_)) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::OfApi { .. }
            | Self::KeepObjects(
                KeepObjectsError::OfApi | KeepObjectsError::Owned { .. } | KeepObjectsError::TooMany,
            )
            | Self::Stop(StopError::Stopped(_))
            | Self::Start(StartError::NotStopped(_) | StartError::Add(_))
            | Self::Restart(_)
            | Self::Add(AddError::NameTaken { .. }) => StatusCode::CONFLICT,
            Self::Add(AddError::Full | AddError::ShuttingDown) | Self::TooManyCommands | Self::Gone(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Store(_)
            | Self::KeepObjects(KeepObjectsError::Save { .. })
            | Self::Stopped(_)
            | Self::Stop(StopError::Save(_))
            | Self::Start(StartError::Save(_)) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl Answering for Control {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        self.route(request).await.unwrap_or_else(|error| {
            let refusal = ControlRefusal {
                error: error.to_string(),
            };
            json(error.status(), &refusal)
        })
    }
}

impl Control {
    pub(crate) fn new(
        node: NodeHandle,
        runtime: Arc<dyn Runtime>,
        objects: HandedObjects,
        about: NodeView,
    ) -> Self {
        Self {
            node,
            about,
            runtime,
            objects: Arc::new(objects),
            commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
        }
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<Body>, ControlError> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let ask = |key| query(request.uri().query(), key);
        match (request.method().clone(), parts.as_slice()) {
            (Method::GET, ["v1", "pods"]) => Ok(json(StatusCode::OK, &self.list().await?)),
            (Method::POST, ["v1", "pods"]) => self.add(request).await,
            (Method::POST, ["v1", "objects"]) => self.keep_objects(request).await,
            (Method::DELETE, ["v1", "pods", namespace, name]) => {
                let grace = ask("gracePeriodSeconds").map(seconds).transpose()?;
                let forgets = ask("forget").as_deref() == Some("true");
                self.delete(&PodName::new(*namespace, *name), grace, forgets)
                    .await
            }
            (Method::POST, ["v1", "pods", namespace, name, "start"]) => {
                let added = self.node.start_pod(&PodName::new(*namespace, *name)).await??;
                Ok(json(StatusCode::OK, &added))
            }
            (Method::POST, ["v1", "pods", namespace, name, "restart"]) => {
                let pod = PodName::new(*namespace, *name);
                let restarted = self.node.restart(&pod, ask("container")).await??;
                Ok(json(StatusCode::OK, &restarted))
            }
            (Method::POST, ["v1", "pods", namespace, name, "exec"]) => {
                self.exec(&PodName::new(*namespace, *name), request).await
            }
            (Method::GET, ["v1", "pods", namespace, name, "manifest"]) => {
                let pod = PodName::new(*namespace, *name);
                let manifest = self.node.manifest(&pod).await?;
                let manifest = manifest.ok_or(crate::NoSuchPod { pod })?;
                Ok(json(StatusCode::OK, &manifest))
            }
            (Method::GET, ["v1", "node"]) => Ok(json(StatusCode::OK, &self.about_now().await)),
            (Method::GET, ["v1", "usage"]) => {
                let page = self.node.page("/stats/summary").await;
                Ok(full(page.status, page.content_type, page.text))
            }
            (Method::GET, ["v1", "pods", namespace, name, "log"]) => {
                let previous = ask("previous").as_deref() == Some("true");
                let pod = PodName::new(*namespace, *name);
                let place = self.node.log(&pod, ask("container"), previous).await??;
                Ok(json(StatusCode::OK, &place))
            }
            (Method::GET, ["v1", "events", uid]) => Ok(json(StatusCode::OK, &self.node.events(uid).await?)),
            (Method::GET, ["v1", "history"]) => {
                let pod = ask("pod").map(|pod| pod.parse()).transpose()?;
                let lines = self.node.history(pod, ask("container")).await?;
                Ok(full(StatusCode::OK, LINES, lines))
            }
            (Method::GET, ["v1", "lines"]) => Ok(self.lines()),
            _ => Err(ControlError::NoSuchPath(path)),
        }
    }

    async fn add(&self, request: Request<Incoming>) -> Result<Response<Body>, ControlError> {
        let body = Limited::new(request.into_body(), MAX_POD);
        let body = body.collect().await.map_err(ControlError::ReadBody)?.to_bytes();
        let pod = serde_json::from_slice(&body).map_err(ControlError::DecodePod)?;
        self.node.forget_stopped(&crate::pod_name_of(&pod)).await?;
        let added = self.node.add_pod(pod, Origin::Detached).await??;
        Ok(json(StatusCode::CREATED, &added))
    }

    async fn keep_objects(&self, request: Request<Incoming>) -> Result<Response<Body>, ControlError> {
        let body = Limited::new(request.into_body(), MAX_OBJECTS);
        let body = body.collect().await.map_err(ControlError::ReadBody)?.to_bytes();
        let objects: Vec<HandedObject> =
            serde_json::from_slice(&body).map_err(ControlError::DecodeObjects)?;
        let objects = objects.into_iter().map(Into::into).collect();
        let kept = Arc::clone(&self.objects);
        tokio::task::spawn_blocking(move || kept.keep(objects))
            .await
            .expect("writing does not panic")?;
        Ok(full(StatusCode::ACCEPTED, JSON, Bytes::new()))
    }

    async fn about_now(&self) -> NodeView {
        let page = self.node.page("/readyz").await;
        let trouble = (!page.status.is_success()).then(|| page.text.trim().to_owned());
        NodeView {
            trouble,
            ..self.about.clone()
        }
    }

    /// Begins a command; what follows on the connection is its streams.
    async fn exec(
        &self,
        pod: &PodName,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, ControlError> {
        let asked = request.uri().query();
        let is = |key| query(asked, key).as_deref() == Some("true");
        let command: Option<Vec<String>> = queries(asked, "command").collect();
        let command = command.ok_or(ControlError::ReadCommand)?;
        if command.is_empty() {
            return Err(ControlError::NoCommand);
        }
        let options = ExecOptions {
            command,
            tty: is("tty"),
            stdin: is("stdin"),
            stdout: true,
            stderr: !is("tty"),
            term: query(asked, "term"),
        };
        let container = self.container(pod, query(asked, "container")).await?;
        let located = self.node.container(pod, &container).await??;
        let slot = Arc::clone(&self.commands).try_acquire_owned();
        let slot = slot.map_err(|_| ControlError::TooManyCommands)?;
        let started = self.runtime.exec(&located.id, &options).await;
        let streams = started.map_err(ControlError::Exec)?;
        let (upgrade, node) = (hyper::upgrade::on(&mut request), self.node.clone());
        tokio::spawn(async move {
            // A client that is gone already takes its command with it.
            if let Ok(upgraded) = upgrade.await {
                tokio::select! {
                    () = exec::converse(upgraded, streams) => {}
                    () = node.ended() => {}
                }
            }
            drop(slot);
        });
        let mut response = full(StatusCode::SWITCHING_PROTOCOLS, JSON, Bytes::new());
        let headers = response.headers_mut();
        let value = hyper::header::HeaderValue::from_static;
        headers.insert(hyper::header::CONNECTION, value("Upgrade"));
        headers.insert(hyper::header::UPGRADE, value(exec::PROTOCOL));
        Ok(response)
    }

    /// The container that is meant; without a name the pod's only one.
    async fn container(&self, pod: &PodName, name: Option<String>) -> Result<String, ControlError> {
        if let Some(name) = name {
            return Ok(name);
        }
        let view = self.node.pod(pod).await?;
        let view = view.ok_or_else(|| crate::NoSuchPod { pod: pod.clone() })?;
        let statuses = view.status.container_statuses.into_iter();
        let mut choices: Vec<String> = statuses.map(|status| status.name).collect();
        if choices.len() == 1 {
            return Ok(choices.remove(0));
        }
        let pod = pod.clone();
        Err(LogError::Ambiguous { pod, choices }.into())
    }

    /// The pods that the agent has, and those that are stopped.
    async fn list(&self) -> Result<Vec<PodView>, ControlError> {
        let mut pods = self.node.pods().await?;
        for StoppedPod { pod, origin } in self.node.stopped.all() {
            let there = |view: &PodView| view.namespace == pod.namespace() && view.name == pod.name();
            if !pods.iter().any(there) {
                pods.push(PodView {
                    namespace: pod.namespace().to_owned(),
                    name: pod.name().to_owned(),
                    uid: crate::uid_of(&pod),
                    origin,
                    accepted_at: jiff::Timestamp::now(),
                    deleting: false,
                    stopped: true,
                    ports: ports(&pod),
                    probes: Vec::new(),
                    stop_signals: BTreeMap::new(),
                    status: pulselet_model::PodStatus::default(),
                });
            }
        }
        Ok(pods)
    }

    async fn delete(
        &self,
        pod: &PodName,
        grace: Option<Duration>,
        forgets: bool,
    ) -> Result<Response<Body>, ControlError> {
        if self.about.joined && self.node.pod(pod).await?.is_some_and(|view| view.origin.is_api()) {
            return Err(ControlError::OfApi { pod: pod.clone() });
        }
        if forgets {
            let was_stopped = self.node.stopped.has(pod);
            self.node.forget_stopped(pod).await?;
            let deleted = self.node.delete_pod(pod, grace).await?;
            if !was_stopped {
                deleted?;
            }
        } else {
            self.node.stop_pod(pod, grace).await??;
        }
        Ok(full(StatusCode::ACCEPTED, JSON, Bytes::new()))
    }

    /// Lines until the client goes away.
    fn lines(&self) -> Response<Body> {
        let lines = self.node.lines().subscribe(GUEST_BACKLOG);
        let frames = stream::unfold(lines, |mut lines| async move {
            let mut text = lines.next().await?.to_json();
            text.push('\n');
            Some((Ok(Frame::data(Bytes::from(text))), lines))
        });
        let mut response = Response::new(UnsyncBoxBody::new(StreamBody::new(frames)));
        let value = hyper::header::HeaderValue::from_static(LINES);
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, value);
        response
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(value).expect("answers are plain data");
    full(status, JSON, text)
}

fn seconds(value: String) -> Result<Duration, ControlError> {
    let key = "gracePeriodSeconds";
    value
        .parse()
        .map(Duration::from_secs)
        .map_err(|_| ControlError::ReadSeconds { key, value })
}
