//! What is at which path, in the form of a kubelet.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use pulselet_agent::{Gone, LogError, NodeHandle, StreamError};
use pulselet_runtime::{AttachOptions, ExecOptions, Runtime};
use pulselet_sessions::{ForwardTarget, SessionStart, WantedStreams, forward_ports, run_command};
use pulselet_streaming::{
    NegotiatedProtocol, NegotiationError, StreamConnection, StreamLayout, StreamPurpose, negotiate,
};
use pulselet_vocabulary::PodName;
use serde_json::json;
use thiserror::Error;

use crate::body::{Body, empty, full, text};
use crate::callers::{self, CallerReview, NodeCaller};
use crate::logs::{self, LogOptions, OptionError, Source};
use crate::query::Query;
use crate::server::{SessionSlot, Sessions};
use crate::tls::Client;

const JSON: &str = "application/json";
/// Ports that one client of channels may ask for: two channels each, and a channel's number is a byte.
const MAX_PORTS: usize = 127;

/// Answers the requests of an endpoint.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) node: NodeHandle,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) sessions: Sessions,
    pub(crate) callers: Option<Arc<dyn CallerReview>>,
}

/// What a client asks of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Exec,
    Attach,
}

/// Why a request gets no good answer; worded as a kubelet does where clients see it.
#[derive(Debug, Error)]
enum RouteError {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("Forbidden (user={user}, verb={method}, resource=nodes, subresource=proxy)")]
    Forbidden { user: String, method: Method },
    #[error("404 page not found")]
    NoSuchPath,
    #[error("405: Method Not Allowed")]
    Method,
    #[error("pod {0:?} does not exist")]
    NoSuchPod(String),
    #[error("container {container:?} not found in pod {pod:?}")]
    NoSuchContainer { pod: String, container: String },
    #[error("container not found ({0:?})")]
    NotRunning(String),
    #[error("pod not found ({0:?})")]
    NoSandbox(String),
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting {
        pod: String,
        container: String,
        reason: String,
    },
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious { pod: String, container: String },
    #[error("unable to retrieve container logs for {container:?} in pod {pod:?}: {source}")]
    ReadLog {
        pod: String,
        container: String,
        source: std::io::Error,
    },
    #[error(transparent)]
    LogOptions(#[from] OptionError),
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStreams,
    #[error("you must specify a command")]
    NoCommand,
    #[error("query parameter \"port\" must be 1 to {MAX_PORTS} numbers from 1 to 65535")]
    Ports,
    #[error(transparent)]
    Upgrade(#[from] NegotiationError),
    #[error("maximum number of in-flight requests exceeded")]
    TooMany,
    #[error("the pods cannot be written as JSON: {0}")]
    WritePods(#[from] serde_json::Error),
    #[error(transparent)]
    Gone(#[from] Gone),
}

impl RouteError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::NoSuchPath | Self::NoSuchPod(_) | Self::NoSuchContainer { .. } => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Waiting { .. }
            | Self::NoPrevious { .. }
            | Self::LogOptions(_)
            | Self::NoStreams
            | Self::NoCommand
            | Self::Ports => StatusCode::BAD_REQUEST,
            Self::Upgrade(error) => error.status(),
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            // A kubelet says 500 for a container that does not run, too.
            Self::NotRunning(_) | Self::NoSandbox(_) | Self::ReadLog { .. } | Self::WritePods(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Gone(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Which container a request is about.
struct ContainerPath {
    pod: PodName,
    container: String,
}

impl ContainerPath {
    fn new(namespace: &str, pod: &str, container: &str) -> Self {
        Self {
            pod: PodName::new(namespace, pod),
            container: container.to_owned(),
        }
    }
}

impl Routes {
    pub(crate) async fn answer(&self, client: &Client, request: Request<Incoming>) -> Response<Body> {
        let answered = self.route(client, request).await;
        answered.unwrap_or_else(|error| text(error.status(), &error))
    }

    async fn route(&self, client: &Client, request: Request<Incoming>) -> Result<Response<Body>, RouteError> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (token, method) = (bearer(request.headers()), request.method().clone());
        self.authorize(client, token.as_deref(), &method, &path).await?;
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let reading = request.method() == Method::GET;
        let streaming = reading || request.method() == Method::POST;
        match *parts.as_slice() {
            ["containerLogs", namespace, pod, container] if reading => {
                let path = ContainerPath::new(namespace, pod, container);
                self.logs(&path, &query).await
            }
            ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] if streaming => {
                let path = ContainerPath::new(namespace, pod, container);
                self.command(Verb::Exec, &path, &query, request).await
            }
            ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] if streaming => {
                let path = ContainerPath::new(namespace, pod, container);
                self.command(Verb::Attach, &path, &query, request).await
            }
            ["portForward", namespace, pod] | ["portForward", namespace, pod, _] if streaming => {
                let pod = PodName::new(namespace, pod);
                self.port_forward(&pod, &query, request).await
            }
            ["pods"] if reading => self.pods().await,
            ["containerLogs" | "exec" | "attach" | "portForward", ..] if parts.len() < 3 => {
                Err(RouteError::NoSuchPath)
            }
            ["containerLogs" | "exec" | "attach" | "portForward" | "pods", ..] => Err(RouteError::Method),
            _ if !reading => Err(RouteError::Method),
            _ => {
                let page = self.node.page(&path).await;
                Ok(full(page.status, page.content_type, page.text))
            }
        }
    }

    /// Whether a client may ask: by its certificate, or by what the API says about it.
    async fn authorize(
        &self,
        client: &Client,
        token: Option<&str>,
        method: &Method,
        path: &str,
    ) -> Result<(), RouteError> {
        if *client == Client::Trusted || (path == "/healthz" && method == Method::GET) {
            return Ok(());
        }
        let caller = match (client, token, &self.callers) {
            (Client::Stranger { user, groups }, ..) if !user.is_empty() => known_by_certificate(user, groups),
            (_, Some(token), Some(callers)) => {
                callers.identify(token).await.ok_or(RouteError::Unauthorized)?
            }
            (_, _, _) => return Err(RouteError::Unauthorized),
        };
        if let Some(callers) = &self.callers {
            for part in callers::parts(path) {
                if callers.allows(&caller, callers::verb(method), part).await {
                    return Ok(());
                }
            }
        }
        Err(RouteError::Forbidden {
            user: caller.user,
            method: method.clone(),
        })
    }

    async fn pods(&self) -> Result<Response<Body>, RouteError> {
        let items = self.node.objects().await?;
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
        Ok(full(StatusCode::OK, JSON, serde_json::to_vec(&list)?))
    }

    async fn logs(&self, path: &ContainerPath, query: &Query) -> Result<Response<Body>, RouteError> {
        let options = LogOptions::parse(query, Timestamp::now())?;
        let (name, previous) = (Some(path.container.clone()), options.previous);
        let place = match self.node.log(&path.pod, name, previous).await? {
            Ok(place) => place,
            Err(error) => return Err(self.no_log(path, error).await),
        };
        let source = Source {
            node: self.node.clone(),
            pod: path.pod.clone(),
            place,
        };
        let body = logs::read(source, options)
            .await
            .map_err(|source| RouteError::ReadLog {
                pod: path.pod.name.to_string(),
                container: path.container.clone(),
                source,
            })?;
        let mut answer = Response::new(body);
        let kind = hyper::header::HeaderValue::from_static("text/plain");
        answer.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
        Ok(answer)
    }

    async fn no_log(&self, path: &ContainerPath, error: LogError) -> RouteError {
        let (name, container) = (path.pod.name.to_string(), path.container.clone());
        match error {
            LogError::Pod(_) => RouteError::NoSuchPod(name),
            LogError::NoSuchContainer { .. } | LogError::Ambiguous { .. } => {
                RouteError::NoSuchContainer { pod: name, container }
            }
            LogError::NoPrevious { .. } => RouteError::NoPrevious { pod: name, container },
            LogError::NotYet { .. } => RouteError::Waiting {
                reason: self.waiting_reason(path).await,
                pod: name,
                container,
            },
        }
    }

    async fn waiting_reason(&self, path: &ContainerPath) -> String {
        let found = self.node.pod(&path.pod).await.ok().flatten();
        let statuses = found.iter().flat_map(|view| {
            let status = &view.status;
            status
                .init_container_statuses
                .iter()
                .chain(&status.container_statuses)
        });
        let waiting = statuses
            .filter(|status| status.name == path.container)
            .find_map(|status| status.state.waiting.as_ref()?.reason.clone());
        waiting.unwrap_or_else(|| "ContainerCreating".to_owned())
    }

    async fn command(
        &self,
        verb: Verb,
        path: &ContainerPath,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, RouteError> {
        let wanted = wanted(query)?;
        let command: Vec<String> = query.all("command").map(str::to_owned).collect();
        if verb == Verb::Exec && command.is_empty() {
            return Err(RouteError::NoCommand);
        }
        let found = self.node.container(&path.pod, &path.container).await?;
        let located = found.map_err(|error| no_stream(&path.pod, &path.container, &error))?;
        let (protocol, slot) = self.agree(&request, StreamPurpose::Command)?;
        let runtime = Arc::clone(&self.runtime);
        let WantedStreams {
            stdin,
            stdout,
            stderr,
            tty,
        } = wanted;
        let start = match verb {
            Verb::Exec => SessionStart::Exec(ExecOptions {
                command,
                tty,
                stdin,
                stdout,
                stderr,
                term: None,
            }),
            Verb::Attach => SessionStart::Attach(AttachOptions {
                // Whether there is a terminal was decided when the container was made.
                tty: located.tty,
                stdin,
                stdout,
                stderr: stderr && !located.tty,
            }),
        };
        let session = async move |protocol: NegotiatedProtocol, connection| {
            run_command(connection, &protocol, wanted, &start, &*runtime, &located.id).await;
        };
        Ok(upgraded(request, protocol, slot, session))
    }

    async fn port_forward(
        &self,
        pod: &PodName,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, RouteError> {
        let sandbox = self.node.sandbox(pod).await?;
        let sandbox = sandbox.map_err(|error| no_stream(pod, "", &error))?;
        let (protocol, slot) = self.agree(&request, StreamPurpose::PortForward)?;
        let ports = match protocol.layout() {
            StreamLayout::Channels => ports(query)?,
            StreamLayout::Opened => Vec::new(),
        };
        let target = ForwardTarget {
            runtime: Arc::clone(&self.runtime),
            sandbox,
            pod: pod.name.to_string(),
        };
        let session = async move |protocol: NegotiatedProtocol, connection| {
            forward_ports(connection, &protocol, target, &ports).await;
        };
        Ok(upgraded(request, protocol, slot, session))
    }

    fn agree(
        &self,
        request: &Request<Incoming>,
        purpose: StreamPurpose,
    ) -> Result<(NegotiatedProtocol, SessionSlot), RouteError> {
        let protocol = negotiate(request.headers(), purpose)?;
        let slot = self.sessions.slot().ok_or(RouteError::TooMany)?;
        Ok((protocol, slot))
    }
}

/// API servers and administrators may ask everything, whoever else whether the node is there.
/// The token that a request shows; `None` if it shows none.
fn bearer(headers: &hyper::HeaderMap) -> Option<String> {
    let header = headers.get(hyper::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim().to_owned())
}

/// The API adds this group to everybody who has proved who they are.
fn known_by_certificate(user: &str, groups: &[String]) -> NodeCaller {
    let mut groups = groups.to_vec();
    groups.push("system:authenticated".to_owned());
    NodeCaller {
        user: user.to_owned(),
        groups,
        ..NodeCaller::default()
    }
}

fn no_stream(pod: &PodName, container: &str, error: &StreamError) -> RouteError {
    match error {
        StreamError::Pod(_) => RouteError::NoSuchPod(pod.name.to_string()),
        StreamError::NoSuchContainer { .. } | StreamError::NotRunning { .. } => {
            RouteError::NotRunning(container.to_owned())
        }
        StreamError::NoSandbox { .. } => RouteError::NoSandbox(pod.name.to_string()),
    }
}

fn wanted(query: &Query) -> Result<WantedStreams, RouteError> {
    let tty = query.flag("tty");
    let wanted = WantedStreams {
        stdin: query.flag("input"),
        stdout: query.flag("output"),
        // A terminal has one output.
        stderr: query.flag("error") && !tty,
        tty,
    };
    if wanted.stdin || wanted.stdout || wanted.stderr {
        Ok(wanted)
    } else {
        Err(RouteError::NoStreams)
    }
}

fn ports(query: &Query) -> Result<Vec<u16>, RouteError> {
    let texts = query.all("port").flat_map(|list| list.split(','));
    let ports: Option<Vec<u16>> = texts
        .map(|text| text.parse().ok().filter(|port| *port > 0))
        .take(MAX_PORTS + 1)
        .collect();
    ports
        .filter(|ports| (1..=MAX_PORTS).contains(&ports.len()))
        .ok_or(RouteError::Ports)
}

/// The answer that grants an upgrade; the session begins once it is sent.
fn upgraded<S>(
    request: Request<Incoming>,
    protocol: NegotiatedProtocol,
    slot: SessionSlot,
    session: impl FnOnce(NegotiatedProtocol, StreamConnection) -> S + Send + 'static,
) -> Response<Body>
where
    S: Future<Output = ()> + Send,
{
    let answer = protocol.answer().map(|()| empty());
    slot.begin(async move {
        match hyper::upgrade::on(request).await {
            Ok(stream) => {
                let connection = protocol.start(TokioIo::new(stream));
                session(protocol, connection).await;
            }
            Err(error) => tracing::debug!(%error, "a client left before its streams began"),
        }
    });
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_what_the_query_says() {
        let parsed = |query: &str| wanted(&Query::parse(query));
        let all = parsed("input=1&output=1&error=1").unwrap();
        assert!(all.stdin && all.stdout && all.stderr && !all.tty);
        let terminal = parsed("input=true&output=1&error=1&tty=1").unwrap();
        assert!(terminal.tty && !terminal.stderr);
        assert!(matches!(parsed("tty=1&error=1"), Err(RouteError::NoStreams)));
        assert!(matches!(parsed("output=0"), Err(RouteError::NoStreams)));
    }

    #[test]
    fn ports_are_numbers_and_not_too_many() {
        let parsed = |query: &str| ports(&Query::parse(query)).ok();
        assert_eq!(parsed("port=80,443&port=1"), Some(vec![80, 443, 1]));
        for bad in ["", "port=", "port=0", "port=65536", "port=80,", "port=x"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        let many = vec!["1"; MAX_PORTS + 1].join(",");
        assert_eq!(parsed(&format!("port={many}")), None);
    }
}
