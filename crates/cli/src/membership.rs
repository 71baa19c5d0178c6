//! A node's membership of an API: joining it, and the endpoint at which the API reaches the node.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use pulselet_agent::{Feed, NodeDuties, NodeFacts, NodeHandle, NodeOptions};
use pulselet_apiserver::NodeCertifier;
use pulselet_cluster::{
    ApiClient, ApiObjects, BootstrapError, CallerReviews, CertificateSubject, IssuedCertificate, Joined,
    Kubeconfig, Machine, ReviewedUser, join, renew_client, renew_serving,
};
use pulselet_node_server::{CallerReview, NodeCaller, NodeServer, Options, Tls, serve};
use pulselet_runtime::Runtime;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::cli::{MemberArgs, parse_node_name};
use crate::exit::Failure;
use crate::output;

/// Where a node keeps in its data directory what it knows of services.
const SERVICES_FILE: &str = "services.json";
/// How often a node of this process gets a new certificate to serve with. Each is good for a year, and making one costs nothing.
const RECERTIFY_INTERVAL: Duration = Duration::from_hours(24);

/// What a node needs to join: everything that can be found wrong before it starts.
#[derive(Debug)]
pub(crate) struct Application {
    name: String,
    client: ApiClient,
    authority: String,
    listener: TcpListener,
    /// Issues what the node serves with; `None` if the node makes that itself.
    certifier: Option<NodeCertifier>,
    feed: Feed,
    objects: ApiObjects,
    renewal: Renewal,
    /// The API is part of this process, and goes down with the machine.
    is_own_api: bool,
}

/// Who renews a node's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Renewal {
    /// Whoever wrote its kubeconfig.
    Others,
    /// The node asks the API for new ones, with this kubeconfig where it has none that counts.
    Node { bootstrap: PathBuf },
}

/// A node that has joined; the API loses sight of it when this is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    _joined: Joined,
    server: NodeServer,
    /// What renews certificates.
    _renewing: Vec<AbortOnDrop>,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a node is called if nobody says otherwise.
pub(crate) fn node_name(args: &MemberArgs) -> Result<String, Failure> {
    if let Some(name) = &args.node_name {
        return Ok(name.clone());
    }
    let name = NodeFacts::detect().name;
    parse_node_name(&name).map_err(|why| {
        Failure::environment(format_args!(
            "the name of this machine, {name:?}, is none for a node: {why}"
        ))
        .with_hint("choose one with --node-name")
    })
}

impl Application {
    pub(crate) async fn new(kubeconfig: &Path, args: &MemberArgs) -> Result<Self, Failure> {
        let name = node_name(args)?;
        let kubeconfig = Kubeconfig::load(kubeconfig).map_err(Failure::usage)?;
        let address = args.node_listen;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::environment(format_args!("cannot listen on {address}: {error}"))
                .with_hint("choose another address with --node-listen")
        })?;
        let authority = kubeconfig.authority().to_owned();
        let client = ApiClient::new(kubeconfig);
        Ok(Self {
            name,
            authority,
            objects: ApiObjects::new(client.clone()),
            client,
            listener,
            certifier: None,
            feed: Feed::default(),
            renewal: Renewal::Others,
            is_own_api: false,
        })
    }

    /// Asks the API that a bootstrap kubeconfig names for a certificate, and waits until it is signed.
    pub(crate) async fn bootstrap(
        bootstrap: &Path,
        args: &MemberArgs,
        data_dir: &Path,
    ) -> Result<Self, Failure> {
        let name = node_name(args)?;
        let created = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data_dir);
        created.map_err(|error| {
            Failure::environment(format_args!("cannot create {}: {error}", data_dir.display()))
                .with_hint("name a directory that you can write to with --data-dir")
        })?;
        let joining = pulselet_cluster::bootstrap(bootstrap, data_dir, &name);
        let kubeconfig = joining.await.map_err(|error| match error {
            BootstrapError::Load(_) => Failure::usage(error),
            other => Failure::environment(other),
        })?;
        let mut application = Self::new(&kubeconfig, args).await?;
        application.renewal = Renewal::Node {
            bootstrap: bootstrap.to_owned(),
        };
        Ok(application)
    }

    /// What the node is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the API will reach the node: one that listens everywhere, at the address of its machine.
    pub(crate) fn endpoint(&self) -> Result<SocketAddr, Failure> {
        let listening = self.listener.local_addr().map_err(Failure::environment)?;
        Ok(if listening.ip().is_unspecified() {
            SocketAddr::new(NodeFacts::detect().address, listening.port())
        } else {
            listening
        })
    }

    /// Joins the API of this process, whose authority signs what the node serves with.
    pub(crate) fn certify(&mut self, certifier: NodeCertifier) {
        self.is_own_api = true;
        self.certifier = Some(certifier);
    }

    /// Makes a node one that can join.
    pub(crate) fn prepare(&mut self, options: &mut NodeOptions) {
        options.facts.name.clone_from(&self.name);
        options.feed = Some(self.feed.clone());
        options.joined = true;
        options.static_suffix = format!("-{}", self.name);
        let file = options.data_dir.path().join(SERVICES_FILE);
        self.objects = self.objects.clone().with_services_in(file);
        options.objects = Arc::new(self.objects.clone());
        options.local_objects = None;
        options.keeps_api_pods = self.is_own_api;
    }

    /// Joins with a node that runs.
    pub(crate) fn join(
        self,
        node: NodeHandle,
        runtime: Arc<dyn Runtime>,
        facts: NodeFacts,
        duties: NodeDuties,
        data_dir: &Path,
    ) -> Result<Membership, Failure> {
        let endpoint = self.endpoint()?;
        let tls = match &self.certifier {
            Some(certifier) => {
                let certificate = certifier.issue().map_err(Failure::environment)?;
                Tls {
                    certificates: certificate.certificate,
                    key: certificate.key,
                    client_authorities: certificate.authority,
                }
            }
            None => Tls::self_signed(&[&self.name], &[endpoint.ip()], self.authority)
                .map_err(Failure::environment)?,
        };
        let server = serve(Options {
            node: node.clone(),
            runtime: Arc::clone(&runtime),
            listener: self.listener,
            tls,
            callers: Some(Arc::new(ApiCallers(CallerReviews::new(
                self.client.clone(),
                self.name.clone(),
            )))),
        });
        let server = server.map_err(Failure::environment)?;
        let renewing = match self.renewal {
            Renewal::Others => {
                let renewing = self.certifier.map(|certifier| recertify(certifier, &server));
                renewing.into_iter().collect()
            }
            Renewal::Node { bootstrap } => {
                let subject = subject(&self.name, endpoint, &facts);
                renew(&self.client, bootstrap, data_dir, subject, &server)
            }
        };
        let machine = Machine {
            facts,
            duties,
            runtime,
            data_dir: data_dir.to_owned(),
            endpoint,
        };
        Ok(Membership {
            _joined: join(&self.client, node, self.feed, &self.objects, machine),
            server,
            _renewing: renewing,
        })
    }
}

/// Asks the API about the callers of the node's endpoint.
#[derive(Debug)]
struct ApiCallers(CallerReviews);

impl CallerReview for ApiCallers {
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<NodeCaller>> {
        Box::pin(async move {
            let user = self.0.identify(token).await?;
            let ReviewedUser {
                username,
                uid,
                groups,
                extra,
            } = user;
            Some(NodeCaller {
                user: username,
                uid,
                groups,
                extra,
            })
        })
    }

    fn allows<'a>(&'a self, caller: &'a NodeCaller, verb: &'a str, part: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let user = ReviewedUser {
                username: caller.user.clone(),
                uid: caller.uid.clone(),
                groups: caller.groups.clone(),
                extra: caller.extra.clone(),
            };
            self.0.allows(&user, verb, part).await
        })
    }
}

/// Has a node of this process serve with a new certificate each day, for as long as the task lives.
fn recertify(certifier: NodeCertifier, server: &NodeServer) -> AbortOnDrop {
    let certificate = server.certificate();
    AbortOnDrop(tokio::spawn(async move {
        loop {
            tokio::time::sleep(RECERTIFY_INTERVAL).await;
            let replaced = match certifier.issue() {
                Ok(issued) => certificate
                    .replace(&issued.certificate, &issued.key)
                    .map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = replaced {
                output::note(&format!(
                    "the node serves with the certificate of before: {error}"
                ));
            }
        }
    }))
}

/// What the certificate says with which a node serves.
fn subject(node: &str, endpoint: SocketAddr, facts: &NodeFacts) -> CertificateSubject {
    let mut addresses = vec![endpoint.ip()];
    if facts.address != endpoint.ip() {
        addresses.push(facts.address);
    }
    CertificateSubject {
        node: node.to_owned(),
        addresses,
    }
}

/// Renews both certificates of a node for as long as the tasks live.
fn renew(
    client: &ApiClient,
    bootstrap: PathBuf,
    data_dir: &Path,
    subject: CertificateSubject,
    server: &NodeServer,
) -> Vec<AbortOnDrop> {
    let certificate = server.certificate();
    let use_it = move |issued: IssuedCertificate| {
        if let Err(error) = certificate.replace(&issued.certificates, &issued.key) {
            output::note(&format!(
                "the certificate that the API has signed cannot be used: {error}"
            ));
        }
    };
    let (client, data_dir, node) = (client.clone(), data_dir.to_owned(), subject.node.clone());
    vec![
        AbortOnDrop(renew_client(client.clone(), bootstrap, data_dir.clone(), node)),
        AbortOnDrop(renew_serving(client, data_dir, subject, use_it)),
    ]
}

impl Membership {
    /// Where the node's endpoint is.
    pub(crate) const fn endpoint(&self) -> SocketAddr {
        self.server.address()
    }
}
