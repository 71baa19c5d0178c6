//! The connection to the server: made anew by itself whenever it broke, and tried out before anything relies on it.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tower::service_fn;

use crate::call::{CallError, call, explain, is_away};
use crate::wire::containerd::events_client::EventsClient;
use crate::wire::containerd_tasks::tasks_client::TasksClient;
use crate::wire::v1::image_service_client::ImageServiceClient;
use crate::wire::v1::runtime_service_client::RuntimeServiceClient;
use crate::wire::{v1, v1alpha2};

/// How long a server that is there may take for the first answer; one that is starting takes seconds.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// How long the socket may take to accept.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes of one message, as a kubelet takes; the output of a command is the largest.
const MAX_MESSAGE: usize = 16 << 20;
/// Bytes of a socket's path that the kernel takes, without the zero that ends it.
const MAX_PATH: usize = 107;

/// Why a socket is of no use. Each says what was found; [`ConnectError::hint`] what to do.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("there is no {path}", path = path.display())]
    Missing { path: PathBuf },
    #[error("{path} is not a socket", path = path.display())]
    NotASocket { path: PathBuf },
    #[error("no permission to use {path}", path = path.display())]
    Denied { path: PathBuf },
    #[error("nobody listens on {path}", path = path.display())]
    NobodyListens { path: PathBuf },
    #[error("{path} has more than the {MAX_PATH} bytes that the path of a socket may have", path = path.display())]
    TooLong { path: PathBuf },
    #[error("cannot connect to {path}: {source}", path = path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("what listens on {path} does not answer within {after:?}", path = path.display())]
    NoAnswer { path: PathBuf, after: Duration },
    #[error("what listens on {path} is not a CRI server: {detail}", path = path.display())]
    NotCri { path: PathBuf, detail: String },
    #[error("{name} {version} on {path} speaks CRI v1alpha2 only, and v1 is needed", path = path.display())]
    TooOld {
        path: PathBuf,
        name: String,
        version: String,
    },
}

impl ConnectError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "start containerd or CRI-O, or name its socket: --runtime unix:///PATH",
            Self::NotASocket { .. } => "name the runtime's socket: --runtime unix:///PATH",
            Self::Denied { .. } => "use sudo",
            Self::TooLong { .. } => {
                "make a link to its directory that has a shorter path, and name the socket by that"
            }
            Self::NobodyListens { .. } | Self::Connect { .. } | Self::NoAnswer { .. } => {
                "see whether the container runtime is well, for example: systemctl status containerd"
            }
            Self::NotCri { .. } => {
                "containerd answers this way while its cri plugin is off: remove \"cri\" from disabled_plugins in its \
                 config.toml"
            }
            Self::TooOld { .. } => "upgrade to containerd 1.6, CRI-O 1.24 or newer",
        }
    }
}

/// The services of one server. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Channel);

impl Connection {
    /// Does nothing until the first call; each call of a broken connection tries once to make it anew.
    fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address is only for the headers.
        let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT);
        Self(endpoint.connect_with_connector_lazy(connector))
    }

    /// Connects and asks who is there.
    pub(crate) async fn open(socket: &Path) -> Result<(Self, v1::VersionResponse), ConnectError> {
        try_socket(socket).await?;
        let connection = Self::new(socket);
        let version = connection.version().await;
        let version = match version {
            Ok(version) => version,
            Err(error) => return Err(connection.diagnose(socket, error).await),
        };
        Ok((connection, version))
    }

    pub(crate) async fn version(&self) -> Result<v1::VersionResponse, CallError> {
        let request = v1::VersionRequest::default();
        call(FIRST_ANSWER, self.runtime().version(request)).await
    }

    async fn diagnose(&self, socket: &Path, error: CallError) -> ConnectError {
        let path = socket.to_owned();
        let status = match error {
            CallError::Late(after) => return ConnectError::NoAnswer { path, after },
            CallError::Refused(status) => status,
        };
        if status.code() == Code::Unimplemented {
            let mut old = v1alpha2::runtime_service_client::RuntimeServiceClient::new(self.0.clone());
            let request = Request::new(v1alpha2::VersionRequest::default());
            if let Ok(version) = call(FIRST_ANSWER, old.version(request)).await {
                return ConnectError::TooOld {
                    path,
                    name: version.runtime_name,
                    version: version.runtime_version,
                };
            }
        }
        let detail = if is_away(&status) {
            format!(
                "it closed the connection or spoke something else ({})",
                explain(&status)
            )
        } else {
            explain(&status)
        };
        ConnectError::NotCri { path, detail }
    }

    pub(crate) fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn containerd_tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.0.clone())
    }

    pub(crate) fn containerd_events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.0.clone())
    }
}

/// Sees what a path is before gRPC makes one error of everything.
async fn try_socket(socket: &Path) -> Result<(), ConnectError> {
    let path = || socket.to_owned();
    let explained = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ConnectError::Missing { path: path() },
        io::ErrorKind::PermissionDenied => ConnectError::Denied { path: path() },
        io::ErrorKind::ConnectionRefused => ConnectError::NobodyListens { path: path() },
        _ => ConnectError::Connect { path: path(), source },
    };
    let metadata = tokio::fs::metadata(socket).await.map_err(explained)?;
    if !metadata.file_type().is_socket() {
        return Err(ConnectError::NotASocket { path: path() });
    }
    if socket.as_os_str().len() > MAX_PATH {
        return Err(ConnectError::TooLong { path: path() });
    }
    let after = CONNECT;
    tokio::time::timeout(after, UnixStream::connect(socket))
        .await
        .map_err(|_| ConnectError::NoAnswer { path: path(), after })?
        .map_err(explained)?;
    Ok(())
}
