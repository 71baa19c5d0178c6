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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pulselet_model::{GateSet, Profile};
use pulselet_store::{CheckReport, EtcdConfig, EtcdStore, HistoryLimits, SqliteStore, Store, StoreError};
use sha2::Digest as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::access::pki::{self, Authority, Credential, PkiError};
use crate::access::tokens::ServiceAccountTokens;
use crate::access::{ADMIN_GROUP, AccessError, Authenticator, KeyError};
use crate::audit::{AuditLog, AuditPolicy, AuditPolicyError};
use crate::client::LocalClient;
use crate::node_proxy::Nodes;
use crate::registry::copies::{BEAT_INTERVAL, Roster};
use crate::registry::object::{is_whole, new_uid};
use crate::registry::strategies::Rules;
use crate::registry::{Registry, ServiceRange};
use crate::rest::handler::Handler;
use crate::rest::status::ApiError;
pub(crate) use connection::keep_alive;
use connections::{ConnectionLimits, Connections};

/// The store's file in the data directory.
const STORE: &str = "api.db";
/// Beside it is kept which store of an etcd cluster was used.
const ETCD: &str = "etcd";
/// How long requests under way may take when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// How long the listener waits after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often the server looks whether a certificate that it renews is due. A machine that slept, or whose clock was set, is
/// not to wait for long.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(1);
/// The user of the administrator's kubeconfig.
const ADMIN: &str = "admin";
/// Beside the authority: the certificates that no longer count.
const REVOKED: &str = "revoked";

/// What a server needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    /// Holds the store unless that is etcd, certificates, tokens and the administrator's kubeconfig.
    pub data_dir: PathBuf,
    pub profile: Profile,
    pub gates: GateSet,
    pub history: HistoryLimits,
    /// The etcd cluster that keeps the objects; `None` if they are in a file of the data directory.
    pub etcd: Option<EtcdConfig>,
    /// Begin with an empty store, whatever was there; that is put aside.
    pub new_store: bool,
    /// Where changes and refusals are recorded; `None` if they are not.
    pub audit_log: Option<PathBuf>,
    /// What is recorded there; `None` if that is changes and refusals, without bodies.
    pub audit_policy: Option<PathBuf>,
    /// The addresses that Services get.
    pub service_range: ServiceRange,
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
            etcd: None,
            new_store: false,
            audit_log: None,
            audit_policy: None,
            service_range: ServiceRange::DEFAULT,
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
    #[error(
        "this server and the others on its etcd have different certificate authorities or token keys, and each would refuse \
         what the other issues: copy the directory pki of one of them into the data directory of this one"
    )]
    OtherAuthority,
    #[error(
        "a store in etcd is not begun anew: it is not this server's alone; leave --new-store out, or name another --etcd-prefix"
    )]
    NewEtcd,
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
    AuditPolicy(#[from] AuditPolicyError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    TokenKey(#[from] KeyError),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// A server that listens and can be run.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptorDebug,
    handler: Arc<Handler>,
    authenticator: Arc<Authenticator>,
    /// What is renewed while the server runs.
    issued: Mutex<Vec<IssuedKubeconfig>>,
    registry: Registry,
    authority: Arc<Authority>,
    address: SocketAddr,
    data_dir: PathBuf,
    kubeconfig: PathBuf,
    /// Names this server among those that share its store.
    copy: Arc<str>,
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

/// Issues what a node of this process serves with, for as long as the node lives.
#[derive(Debug, Clone)]
pub struct NodeCertifier {
    authority: Arc<Authority>,
    node: String,
    addresses: Vec<IpAddr>,
}

impl NodeCertifier {
    pub fn issue(&self) -> Result<NodeCertificate, PkiError> {
        let user = format!("{}{}", crate::access::NODE_USER_PREFIX, self.node);
        let credential = self
            .authority
            .issue_server(&user, &[&self.node], &self.addresses)?;
        Ok(NodeCertificate {
            certificate: credential.certificate_pem,
            key: credential.key_pem,
            authority: self.authority.certificate_pem().to_owned(),
        })
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
        let store: Arc<dyn Store> = match &config.etcd {
            Some(_) if config.new_store => return Err(ServeError::NewEtcd),
            Some(etcd) => Arc::new(EtcdStore::open(etcd, &data_dir.join(ETCD)).await?),
            None => open_file(&data_dir, config.new_store, config.history)?,
        };
        let rules = Rules {
            profile: config.profile,
            gates: config.gates,
        };
        let authority = Arc::new(Authority::load_or_create(&data_dir.join("pki"))?);
        let registry = Registry::new(store, rules, config.service_range, authority.certificate_pem());
        let tokens = ServiceAccountTokens::open(&data_dir.join("pki"), registry.clone())?;
        prepare(&registry, &authority, &tokens).await?;
        let revoked = data_dir.join("pki").join(REVOKED);
        let token_file = data_dir.join("tokens.csv");
        let authenticator = Authenticator::new(authority.certificate(), &revoked, &token_file, tokens)?;
        let listen_failed = |source| ServeError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_failed)?;
        let address = listener.local_addr().map_err(listen_failed)?;
        announce(&registry, address).await?;
        let service = config.service_range.own_address();
        let acceptor = tls::acceptor(&authority, &authenticator, address.ip(), service)?;
        let nodes = Nodes::new(registry.clone(), &authority)?;
        let audit = open_audit_log(config.audit_log, config.audit_policy.as_deref())?;
        let kubeconfig = data_dir.join("admin.kubeconfig");
        let admin = IssuedKubeconfig {
            path: kubeconfig.clone(),
            user: ADMIN.to_owned(),
            group: ADMIN_GROUP,
        };
        let authenticator = Arc::new(authenticator);
        let written = admin.write(&url(address), &authority, |kept| {
            proves(&authenticator, kept, ADMIN)
        });
        unless_usable(written, &kubeconfig, &url(address))?;
        Ok(Self {
            listener,
            acceptor: TlsAcceptorDebug(acceptor),
            handler: Arc::new(Handler::new(
                registry.clone(),
                Arc::clone(&authenticator),
                nodes,
                audit,
                Arc::clone(&authority),
                url(address),
            )),
            authenticator,
            issued: Mutex::new(vec![admin]),
            registry,
            authority,
            address,
            data_dir,
            kubeconfig,
            copy: format!("{address}_{}", new_uid()).into(),
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
        LocalClient::new(
            self.registry.clone(),
            Arc::clone(&self.copy),
            Arc::clone(&self.lock),
        )
    }

    /// Writes a kubeconfig with which a node can join, into the data directory.
    pub fn write_node_kubeconfig(&self, node: &str) -> Result<PathBuf, PkiError> {
        let path = self.data_dir.join(format!("node-{node}.kubeconfig"));
        let issued = IssuedKubeconfig {
            path: path.clone(),
            user: format!("{}{node}", crate::access::NODE_USER_PREFIX),
            group: crate::access::NODE_GROUP,
        };
        let written = issued.write(&url(self.address), &self.authority, |kept| {
            proves(&self.authenticator, kept, &issued.user)
        });
        unless_usable(written, &path, &url(self.address))?;
        self.issued
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(issued);
        Ok(path)
    }

    /// Renews the kubeconfigs that are due, as long as the server runs.
    fn renew(&self) {
        let issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        for kubeconfig in issued.iter().filter(|kubeconfig| kubeconfig.is_due()) {
            let path = kubeconfig.path.display();
            match kubeconfig.write(&url(self.address), &self.authority, |_| false) {
                Ok(()) => tracing::info!(kubeconfig = %path, "its certificate was renewed"),
                Err(error) => tracing::warn!(kubeconfig = %path, %error, "its certificate cannot be renewed"),
            }
        }
    }

    /// Issues the certificates with which a node serves logs, exec and the like at these addresses.
    pub fn node_certifier(&self, node: &str, addresses: &[IpAddr]) -> NodeCertifier {
        NodeCertifier {
            authority: Arc::clone(&self.authority),
            node: node.to_owned(),
            addresses: addresses.to_vec(),
        }
    }

    /// What a server does that shares its store with others, until this is dropped.
    fn keep_company(&self) -> [AbortOnDropHandle<()>; 2] {
        let mut roster = Roster::new(self.registry.clone(), tls::reachable(self.address));
        let beats = async move {
            loop {
                if let Err(error) = roster.beat().await {
                    tracing::warn!(%error, "the server cannot tell others that it is there");
                }
                tokio::time::sleep(BEAT_INTERVAL).await;
            }
        };
        let policy = self.registry.clone().follow_policy();
        [
            AbortOnDropHandle::new(tokio::spawn(beats)),
            AbortOnDropHandle::new(tokio::spawn(policy)),
        ]
    }

    /// Serves until `stop` is done, then gives requests under way a little time.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let open = Connections::new(ConnectionLimits::of_process());
        let mut connections = JoinSet::new();
        let companions = self.registry.is_shared().then(|| self.keep_company());
        tokio::pin!(stop);
        let mut renewal = tokio::time::interval(RENEWAL_INTERVAL);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                _ = renewal.tick() => {
                    self.renew();
                    continue;
                }
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
        if let Some(companions) = companions {
            drop(companions);
            let mut roster = Roster::new(self.registry.clone(), tls::reachable(self.address));
            // What cannot be said now, the others notice.
            let _ = tokio::time::timeout(SHUTDOWN_GRACE, roster.leave()).await;
        }
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

/// Opens the store in the data directory.
fn open_file(data_dir: &Path, anew: bool, history: HistoryLimits) -> Result<Arc<dyn Store>, ServeError> {
    let path = data_dir.join(STORE);
    if anew {
        begin_anew(&path)?;
    }
    let store = SqliteStore::open(&path, history)?;
    // Nobody has to wait for it: it changes nothing.
    tokio::task::spawn_blocking(move || warn_of_damage(&path));
    Ok(Arc::new(store))
}

/// Makes the objects that every server has. One of several copies must trust what the others issue.
async fn prepare(
    registry: &Registry,
    authority: &Authority,
    tokens: &ServiceAccountTokens,
) -> Result<(), ServeError> {
    let failed = |source| ServeError::Bootstrap { source };
    if registry.is_shared() {
        let fingerprint = fingerprint(authority, tokens);
        if !registry.agrees_on(&fingerprint).await.map_err(failed)? {
            return Err(ServeError::OtherAuthority);
        }
    }
    registry.create_system_namespaces().await.map_err(failed)?;
    registry.create_default_policy().await.map_err(failed)
}

/// Lets clients inside the cluster know where this server is.
async fn announce(registry: &Registry, address: SocketAddr) -> Result<(), ServeError> {
    let own = tls::reachable(address);
    let announced = if registry.is_shared() {
        Roster::new(registry.clone(), own).beat().await
    } else {
        registry.publish_own_service(&[own]).await
    };
    announced.map_err(|source| ServeError::Bootstrap { source })
}

/// What all copies of a server must have the same of.
fn fingerprint(authority: &Authority, tokens: &ServiceAccountTokens) -> String {
    let certificate = STANDARD.encode(sha2::Sha256::digest(authority.certificate()));
    format!("{certificate} {}", tokens.key_set())
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
    Ok(pulselet_store::backup(&data_dir.join(STORE), to)?)
}

/// Puts a backup in the place of the store of a data directory that no server uses. Returns where the old one was put.
/// Blocks.
pub fn restore_store(data_dir: &Path, backup: &Path) -> Result<Option<PathBuf>, ServeError> {
    let _lock = data_dir::claim(data_dir)?;
    Ok(pulselet_store::restore(backup, &data_dir.join(STORE))?)
}

/// Looks at every page and every object of the store of a data directory, also while a server uses it. Blocks.
pub fn check_store(data_dir: &Path) -> Result<CheckReport, ServeError> {
    Ok(pulselet_store::check(&data_dir.join(STORE), is_whole)?)
}

/// Says at the start what is damaged; everything else is served.
fn warn_of_damage(path: &Path) {
    match pulselet_store::check(path, is_whole) {
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

/// Whether a certificate that was issued before still counts, for this user.
fn proves(authenticator: &Authenticator, credential: &Credential, user: &str) -> bool {
    let identity = authenticator.certificate_identity(std::slice::from_ref(&credential.certificate));
    identity.is_some_and(|identity| identity.user == user)
}

/// A policy is read even if nothing is recorded, so that one that is wrong is noticed.
fn open_audit_log(path: Option<PathBuf>, policy: Option<&Path>) -> Result<Option<Arc<AuditLog>>, ServeError> {
    let policy = policy.map(AuditPolicy::read).transpose()?;
    let Some(path) = path else { return Ok(None) };
    let log = AuditLog::open(&path, policy).map(|log| Some(Arc::new(log)));
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

/// A kubeconfig that the server writes and renews.
#[derive(Debug, Clone)]
struct IssuedKubeconfig {
    path: PathBuf,
    user: String,
    group: &'static str,
}

impl IssuedKubeconfig {
    /// Writes it. The certificate of the one before stays in use for the first two thirds of its time if `counts` says that
    /// it still proves its user: a server that often starts leaves no trail of certificates that all count.
    fn write(
        &self,
        server: &str,
        authority: &Authority,
        counts: impl FnOnce(&Credential) -> bool,
    ) -> Result<(), PkiError> {
        let kept = pki::read_kubeconfig(&self.path).filter(|kept| !kept.is_due() && counts(kept));
        let credential = match kept {
            Some(credential) => credential,
            None if self.group == ADMIN_GROUP => authority.issue_client(&self.user, &[self.group])?,
            None => authority.issue_renewed_client(&self.user, &[self.group])?,
        };
        authority.write_kubeconfig_of(&self.path, server, &self.user, &credential)
    }

    /// Whether it is time for another certificate; a file that somebody removed is left alone.
    fn is_due(&self) -> bool {
        pki::read_kubeconfig(&self.path).is_some_and(|credential| credential.is_due())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_running_server_renews_what_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::new(([127, 0, 0, 1], 0).into(), directory.path());
        let server = Server::bind(config).await.unwrap();
        let path = server.write_node_kubeconfig("n1").unwrap();
        let serial = || {
            let credential = pki::read_kubeconfig(&path).unwrap();
            let (_, certificate) = x509_parser::parse_x509_certificate(&credential.certificate).unwrap();
            let validity = certificate.validity();
            let seconds = validity.not_after.timestamp() - validity.not_before.timestamp();
            (certificate.raw_serial_as_string(), seconds / 86_400)
        };
        let (first, days) = serial();
        assert_eq!(days, i64::from(pki::RENEWED_DAYS) + 1, "it does not last long");
        server.renew();
        assert_eq!(serial().0, first, "it is not due");
        let user = "system:node:n1";
        let old = server
            .authority
            .issue_expired_client(user, crate::access::NODE_GROUP)
            .unwrap();
        server
            .authority
            .write_kubeconfig_of(&path, &url(server.address), user, &old)
            .unwrap();
        let (before, _) = serial();
        server.renew();
        assert_ne!(serial().0, before);
        assert!(proves(
            &server.authenticator,
            &pki::read_kubeconfig(&path).unwrap(),
            user
        ));
    }
}
