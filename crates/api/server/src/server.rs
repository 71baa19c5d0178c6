//! The server: listener, TLS and connections.
//!
//! Both edges are injected: the configuration says where to listen and keep data, the caller's future says when to
//! stop. Connections, handshakes and the time to shut down are bounded.

mod connection;
mod connections;
mod data_dir;
mod tls;

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pulselet_model::{GateSet, Profile};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::access::pki::{Authority, PkiError};
use crate::access::{ADMIN_GROUP, AccessError, Authenticator};
use crate::audit::AuditLog;
use crate::client::LocalClient;
use crate::node_proxy::Nodes;
use crate::registry::Registry;
use crate::registry::kinds::Rules;
use crate::registry::object::is_whole;
use crate::rest::handler::Handler;
use crate::rest::status::ApiError;
use crate::store::{self, CheckReport, HistoryLimits, SqliteStore, StoreError};
pub(crate) use connection::keep_alive;
use connections::{ConnectionLimits, Connections};

/// The store's file in the data directory.
const STORE: &str = "api.db";
/// How long requests under way may take when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// How long the listener waits after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a server needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    /// Holds the store, certificates, tokens and the administrator's kubeconfig.
    pub data_dir: PathBuf,
    pub profile: Profile,
    pub gates: GateSet,
    pub history: HistoryLimits,
    /// Begin with an empty store, whatever was there; that is put aside.
    pub new_store: bool,
    /// Where changes and refusals are recorded; `None` if they are not.
    pub audit_log: Option<PathBuf>,
}

impl Config {
    /// A server on an address with its data in a directory, and defaults for the rest.
    pub fn new(listen: SocketAddr, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            data_dir: data_dir.into(),
            profile: Profile::default(),
            gates: GateSet::default(),
            history: HistoryLimits::default(),
            new_store: false,
            audit_log: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot create the data directory {path}: {source}")]
    CreateDataDir { path: PathBuf, source: io::Error },
    #[error("cannot keep others out of {path}: {source}")]
    MakePrivate { path: PathBuf, source: io::Error },
    #[error("cannot lock the data directory {path}: {source}")]
    Lock { path: PathBuf, source: io::Error },
    #[error("another server uses the data directory {path}")]
    Locked { path: PathBuf },
    #[error("cannot put {path} aside: {source}")]
    PutAside { path: PathBuf, source: io::Error },
    #[error("cannot open the audit log {path}: {source}")]
    OpenAuditLog { path: PathBuf, source: io::Error },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot set up TLS: {source}")]
    Tls { source: rustls::Error },
    #[error("cannot create the objects every server has: {source}")]
    Bootstrap { source: ApiError },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// A server that listens and can be run.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptorDebug,
    handler: Arc<Handler>,
    registry: Registry,
    authority: Authority,
    address: SocketAddr,
    data_dir: PathBuf,
    kubeconfig: PathBuf,
    /// Locked as long as the server or a client of it lives.
    lock: Arc<File>,
}

/// What a node needs to serve, in PEM.
pub struct NodeCertificate {
    pub certificate: String,
    pub key: String,
    /// The authority that signed it, and that signs the certificate with which the server comes as a client.
    pub authority: String,
}

impl std::fmt::Debug for NodeCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeCertificate")
    }
}

/// `TlsAcceptor` has no `Debug` of its own.
struct TlsAcceptorDebug(TlsAcceptor);

impl std::fmt::Debug for TlsAcceptorDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsAcceptor")
    }
}

impl Server {
    /// Opens the store, makes or loads the certificates, writes the administrator's kubeconfig, and listens.
    pub async fn bind(config: Config) -> Result<Self, ServeError> {
        let data_dir = config.data_dir;
        let lock = data_dir::claim(&data_dir)?;
        let path = data_dir.join(STORE);
        if config.new_store {
            begin_anew(&path)?;
        }
        let store = SqliteStore::open(&path, config.history)?;
        // Nobody has to wait for it: it changes nothing.
        tokio::task::spawn_blocking(move || warn_of_damage(&path));
        let rules = Rules {
            profile: config.profile,
            gates: config.gates,
        };
        let registry = Registry::new(Arc::new(store), rules);
        registry
            .create_system_namespaces()
            .await
            .map_err(|source| ServeError::Bootstrap { source })?;
        let authority = Authority::load_or_create(&data_dir.join("pki"))?;
        let authenticator = Authenticator::new(authority.certificate(), &data_dir.join("tokens.csv"))?;
        let listen_failed = |source| ServeError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_failed)?;
        let address = listener.local_addr().map_err(listen_failed)?;
        let acceptor = tls::acceptor(&authority, &authenticator, address.ip())?;
        let nodes = Nodes::new(registry.clone(), &authority)?;
        let audit = config.audit_log.map(open_audit_log).transpose()?;
        let kubeconfig = data_dir.join("admin.kubeconfig");
        let written = authority.write_kubeconfig(&kubeconfig, &url(address), "admin", &[ADMIN_GROUP]);
        unless_usable(written, &kubeconfig, &url(address))?;
        Ok(Self {
            listener,
            acceptor: TlsAcceptorDebug(acceptor),
            handler: Arc::new(Handler::new(registry.clone(), authenticator, nodes, audit)),
            registry,
            authority,
            address,
            data_dir,
            kubeconfig,
            lock: Arc::new(lock),
        })
    }

    /// The address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client for controllers in this process.
    pub fn client(&self) -> LocalClient {
        LocalClient::new(self.registry.clone(), Arc::clone(&self.lock))
    }

    /// Writes a kubeconfig with which a node can join, into the data directory.
    pub fn write_node_kubeconfig(&self, node: &str) -> Result<PathBuf, PkiError> {
        let path = self.data_dir.join(format!("node-{node}.kubeconfig"));
        let user = format!("{}{node}", crate::access::NODE_USER_PREFIX);
        let groups = [crate::access::NODE_GROUP];
        let written = self
            .authority
            .write_kubeconfig(&path, &url(self.address), &user, &groups);
        unless_usable(written, &path, &url(self.address))?;
        Ok(path)
    }

    /// A certificate with which a node serves logs, exec and the like at these addresses.
    pub fn issue_node_certificate(
        &self,
        node: &str,
        addresses: &[IpAddr],
    ) -> Result<NodeCertificate, PkiError> {
        let user = format!("{}{node}", crate::access::NODE_USER_PREFIX);
        let credential = self.authority.issue_server(&user, &[node], addresses)?;
        Ok(NodeCertificate {
            certificate: credential.certificate_pem,
            key: credential.key_pem,
            authority: self.authority.certificate_pem().to_owned(),
        })
    }

    /// Serves until `stop` is done, then gives requests under way a little time.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let open = Connections::new(ConnectionLimits::of_process());
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "the server could not accept a connection");
                        open.relieve();
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let (acceptor, handler) = (self.acceptor.0.clone(), Arc::clone(&self.handler));
            connections.spawn(connection::serve(
                accepted,
                acceptor,
                handler,
                open.open(),
                stopped.clone(),
            ));
        }
        drop(self.listener);
        // The receivers may all be gone, and then nobody needs to know.
        let _ = stopping.send(true);
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, async {
            while connections.join_next().await.is_some() {}
        })
        .await;
        connections.shutdown().await;
        self.registry.settle().await;
    }
}

/// A kubeconfig that cannot be written, on a full disk, is as good as the one that is there, if that leads here.
fn unless_usable(written: Result<(), PkiError>, path: &Path, server: &str) -> Result<(), PkiError> {
    let Err(error) = written else { return Ok(()) };
    let line = format!("server: {server}");
    let leads_here = std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|it| it.trim() == line));
    if !leads_here {
        return Err(error);
    }
    tracing::error!(%error, "a kubeconfig cannot be renewed; the one that is there is used: make room on the disk");
    Ok(())
}

/// Copies the store of a data directory into a new file, also while a server uses it. Blocks.
pub fn backup_store(data_dir: &Path, to: &Path) -> Result<(), ServeError> {
    Ok(store::backup(&data_dir.join(STORE), to)?)
}

/// Puts a backup in the place of the store of a data directory that no server uses. Returns where the old one was put.
/// Blocks.
pub fn restore_store(data_dir: &Path, backup: &Path) -> Result<Option<PathBuf>, ServeError> {
    let _lock = data_dir::claim(data_dir)?;
    Ok(store::restore(backup, &data_dir.join(STORE))?)
}

/// Looks at every page and every object of the store of a data directory, also while a server uses it. Blocks.
pub fn check_store(data_dir: &Path) -> Result<CheckReport, ServeError> {
    Ok(store::check(&data_dir.join(STORE), is_whole)?)
}

/// Says at the start what is damaged; everything else is served.
fn warn_of_damage(path: &Path) {
    match store::check(path, is_whole) {
        Ok(report) if report.is_whole() => {}
        Ok(report) => {
            let (pages, objects) = (report.file.len(), report.damaged.join(", "));
            tracing::error!(
                pages,
                objects,
                "the store is damaged; restore a backup, or delete the objects"
            );
        }
        Err(error) => tracing::error!(%error, "the store cannot be checked"),
    }
}

/// Puts aside what is known of the store before, so that another one may be begun.
fn begin_anew(path: &Path) -> Result<(), ServeError> {
    let stamp = jiff::Timestamp::now().as_millisecond();
    for extension in ["db", "db-wal", "db-shm", "identity"] {
        let from = path.with_extension(extension);
        let to = path.with_extension(format!("{extension}.before-{stamp}"));
        match std::fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ServeError::PutAside {
                    path: from,
                    source: error,
                });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn open_audit_log(path: PathBuf) -> Result<Arc<AuditLog>, ServeError> {
    let log = AuditLog::open(&path).map(Arc::new);
    log.map_err(|source| ServeError::OpenAuditLog { path, source })
}

fn url(address: SocketAddr) -> String {
    // A client cannot connect to "any address"; it is on this machine or will edit the file.
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    format!("https://{}", SocketAddr::new(ip, address.port()))
}
