//! Certificates that a node asks its API for: the one with which it comes as a client, and the one with which it serves.
//!
//! With a bootstrap kubeconfig a node has its first client certificate signed and keeps it, with the key, in its data
//! directory. From then on that is what it comes with, and the bootstrap kubeconfig is needed only once more should the
//! certificate end while the node is away. Both certificates are renewed when most of their time is over.
//!
//! What must always hold: a key never leaves the machine; a file is replaced as a whole; a certificate in use stays in use
//! until another has been written; a node that had a certificate once runs its pods without one, and says what it needs.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::kubeconfig::{Kubeconfig, KubeconfigError};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";
/// The files in a node's data directory: a certificate with its key, each.
const CLIENT_FILE: &str = "node-client.pem";
const SERVING_FILE: &str = "node-serving.pem";
const KUBECONFIG_FILE: &str = "node.kubeconfig";
/// How often it is asked whether a request has been answered.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long an answer is waited for before somebody is told what the node waits for.
const PATIENCE: Duration = Duration::from_secs(15);
/// The shortest wait before a certificate is renewed again, or asked for again after somebody's no.
const MIN_RENEWAL_WAIT: Duration = Duration::from_secs(30);
/// How often the machine's clock is looked at while nothing is due: it may be set, and the machine may sleep.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);
/// How often it is said again what keeps a node from its certificate.
const REMINDER_INTERVAL: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("cannot use the bootstrap kubeconfig: {0}")]
    Load(#[from] KubeconfigError),
    #[error("cannot make a certificate request: {0}")]
    MakeRequest(#[from] rcgen::Error),
    #[error("cannot ask for a certificate: {0}")]
    Ask(#[from] ApiClientError),
    #[error(
        "the certificate request {name} was refused: {why}; ask with another node name, or ask its administrator"
    )]
    Refused { name: String, why: String },
    #[error("the API's answer holds no certificate: {0}")]
    ReadAnswer(&'static str),
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl BootstrapError {
    /// Whether another bootstrap kubeconfig would help.
    fn is_about_credential(&self) -> bool {
        match self {
            Self::Load(_) => true,
            Self::Ask(error) => error.is_about_credential(),
            Self::MakeRequest(_) | Self::Refused { .. } | Self::ReadAnswer(_) | Self::Write { .. } => false,
        }
    }
}

/// What a node's certificate says about it.
#[derive(Debug, Clone)]
pub struct CertificateSubject {
    pub node: String,
    /// Where the node serves.
    pub addresses: Vec<IpAddr>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct IssuedCertificate {
    pub certificates: String,
    pub key: String,
}

impl IssuedCertificate {
    fn write(&self, path: &Path) -> Result<(), BootstrapError> {
        write(path, &format!("{}{}", self.certificates, self.key))
    }
}

impl std::fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IssuedCertificate")
    }
}

/// The kubeconfig to join with. A node without a certificate has one signed first, and waits until the request is approved;
/// one whose certificate has ended does not wait, because it has pods to run: [`renew_client`] gets it another.
pub async fn bootstrap(bootstrap: &Path, data_dir: &Path, node: &str) -> Result<PathBuf, BootstrapError> {
    let kubeconfig = data_dir.join(KUBECONFIG_FILE);
    let kept =
        read_certificate(&data_dir.join(CLIENT_FILE)).filter(|_| Kubeconfig::load(&kubeconfig).is_ok());
    match kept {
        Some(period) if period.lasts() => {}
        Some(_) => follow(bootstrap, &kubeconfig, node),
        None => enrol(bootstrap, data_dir, node).await?,
    }
    Ok(kubeconfig)
}

/// Goes to the server that the bootstrap kubeconfig names by now. What is wrong with it is said where it is used.
fn follow(bootstrap: &Path, kubeconfig: &Path, node: &str) {
    let Ok(config) = Kubeconfig::load(bootstrap) else {
        return;
    };
    if let Err(error) = write(kubeconfig, &own_kubeconfig(&config, node)) {
        tracing::warn!(%error, "the node goes to the API server that it knows");
    }
}

/// Has a client certificate signed with the bootstrap credential. The certificate is written last: with it the node is
/// enrolled.
async fn enrol(bootstrap: &Path, data_dir: &Path, node: &str) -> Result<(), BootstrapError> {
    let config = Kubeconfig::load(bootstrap)?;
    let kubeconfig = own_kubeconfig(&config, node);
    let subject = CertificateSubject {
        node: node.to_owned(),
        addresses: Vec::new(),
    };
    let issued = request(&ApiClient::new(config), NODE_CLIENT, &subject).await?;
    write(&data_dir.join(KUBECONFIG_FILE), &kubeconfig)?;
    issued.write(&data_dir.join(CLIENT_FILE))?;
    tracing::info!(node, "the API has signed the node's certificate");
    Ok(())
}

/// A kubeconfig for the same server, with the certificate of the data directory.
fn own_kubeconfig(config: &Kubeconfig, node: &str) -> String {
    let authority = STANDARD.encode(config.authority());
    let server = config.url();
    let name = config.tls_name();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: node\nclusters:\n- name: api\n  cluster:\n    server: {server}\n    \
         tls-server-name: {name}\n    certificate-authority-data: {authority}\ncontexts:\n- name: node\n  context:\n    \
         cluster: api\n    user: system:node:{node}\nusers:\n- name: system:node:{node}\n  user:\n    \
         client-certificate: {CLIENT_FILE}\n    client-key: {CLIENT_FILE}\n"
    )
}

/// Renews the client certificate of a node for as long as the task lives; with the bootstrap kubeconfig once it has ended.
pub fn renew_client(
    client: ApiClient,
    bootstrap: PathBuf,
    data_dir: PathBuf,
    node: String,
) -> JoinHandle<()> {
    let renewal = ClientRenewal {
        client,
        bootstrap,
        data_dir,
        node,
    };
    tokio::spawn(async move { renewal.run().await })
}

struct ClientRenewal {
    client: ApiClient,
    bootstrap: PathBuf,
    data_dir: PathBuf,
    node: String,
}

impl ClientRenewal {
    async fn run(&self) {
        let file = self.data_dir.join(CLIENT_FILE);
        let (mut backoff, mut reminder) = (Backoff::default(), Reminder::default());
        loop {
            until_due(&file).await;
            let lasts = read_certificate(&file).is_some_and(Period::lasts);
            let renewed = if lasts {
                self.renew(&file).await
            } else {
                enrol(&self.bootstrap, &self.data_dir, &self.node).await
            };
            match renewed {
                Ok(()) => {
                    (backoff, reminder) = (Backoff::default(), Reminder::default());
                    // What is under way goes on with the old one.
                    self.client.reconnect().await;
                    tracing::info!("the node's client certificate was renewed");
                    tokio::time::sleep(MIN_RENEWAL_WAIT).await;
                }
                Err(error) => {
                    if reminder.is_due(&error) {
                        self.complain(&error, lasts);
                    }
                    let pause = match error {
                        // Each try leaves a request that somebody looks at.
                        BootstrapError::Refused { .. } | BootstrapError::ReadAnswer(_) => MIN_RENEWAL_WAIT,
                        BootstrapError::Load(_)
                        | BootstrapError::MakeRequest(_)
                        | BootstrapError::Ask(_)
                        | BootstrapError::Write { .. } => backoff.next(),
                    };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// With the certificate that the node has.
    async fn renew(&self, file: &Path) -> Result<(), BootstrapError> {
        let subject = CertificateSubject {
            node: self.node.clone(),
            addresses: Vec::new(),
        };
        request(&self.client, NODE_CLIENT, &subject).await?.write(file)
    }

    fn complain(&self, error: &BootstrapError, lasts: bool) {
        let path = self.bootstrap.display();
        if lasts {
            tracing::warn!(%error, "the node's client certificate cannot be renewed");
        } else if error.is_about_credential() {
            tracing::error!(
                %error,
                "the node's client certificate has ended, and {path} gets it no other; its pods run on, but the API hears \
                 nothing of them: put a new bootstrap kubeconfig there (`pulselet api bootstrap-kubeconfig` prints one), it is \
                 used without a restart"
            );
        } else {
            tracing::warn!(
                %error,
                "the node's client certificate has ended, and another cannot be had yet; its pods run on"
            );
        }
    }
}

/// What was complained about, and when.
#[derive(Default)]
struct Reminder {
    said: Option<(String, Instant)>,
}

impl Reminder {
    /// Whether this is news, or so old that it is worth another line.
    fn is_due(&mut self, error: &BootstrapError) -> bool {
        let text = error.to_string();
        let is_known = |(said, when): &(String, Instant)| *said == text && when.elapsed() < REMINDER_INTERVAL;
        if self.said.as_ref().is_some_and(is_known) {
            return false;
        }
        self.said = Some((text, Instant::now()));
        true
    }
}

/// Has a certificate signed with which a node serves, and renews it, for as long as the task lives. Each is handed to
/// `use_it`; one from an earlier start comes first.
pub fn renew_serving(
    client: ApiClient,
    data_dir: PathBuf,
    subject: CertificateSubject,
    use_it: impl Fn(IssuedCertificate) + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let file = data_dir.join(SERVING_FILE);
        if let Some(kept) = read_issued(&file).filter(|_| read_certificate(&file).is_some_and(Period::lasts))
        {
            use_it(kept);
        }
        let mut backoff = Backoff::default();
        loop {
            until_due(&file).await;
            let issued = match request(&client, NODE_SERVING, &subject).await {
                Ok(issued) => issued,
                Err(error) => {
                    tracing::warn!(%error, "the node has no signed certificate to serve with");
                    tokio::time::sleep(backoff.next().max(MIN_RENEWAL_WAIT)).await;
                    continue;
                }
            };
            backoff.reset();
            if let Err(error) = issued.write(&file) {
                tracing::warn!(%error, "the certificate that the node serves with is not kept");
            }
            use_it(issued);
            tracing::info!("the node serves with a certificate that the API has signed");
            tokio::time::sleep(MIN_RENEWAL_WAIT).await;
        }
    })
}

/// Sends a request and waits for its answer.
async fn request(
    client: &ApiClient,
    signer: &str,
    subject: &CertificateSubject,
) -> Result<IssuedCertificate, BootstrapError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    let name = format!("system:node:{}", subject.node);
    params.distinguished_name.push(DnType::CommonName, name);
    let usage = if signer == NODE_SERVING {
        let host = subject.node.as_str().try_into()?;
        params.subject_alt_names.push(SanType::DnsName(host));
        let addresses = subject.addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        "server auth"
    } else {
        "client auth"
    };
    let pem = params.serialize_request(&key)?.pem()?;
    let body = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": {
            "signerName": signer,
            "request": STANDARD.encode(pem),
            "usages": ["digital signature", usage],
        },
    });
    let made: Value = client.ask(Call::create(REQUESTS, &body)).await?;
    let name = made["metadata"]["name"]
        .as_str()
        .ok_or(BootstrapError::ReadAnswer("the request has no name"))?;
    let certificates = answer(client, name).await?;
    Ok(IssuedCertificate {
        certificates,
        key: key.serialize_pem(),
    })
}

/// Waits until a request is answered.
async fn answer(client: &ApiClient, name: &str) -> Result<String, BootstrapError> {
    let path = format!("{REQUESTS}/{name}");
    let mut backoff = Backoff::default();
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        match client.ask::<Value>(Call::get(path.clone())).await {
            Ok(request) => {
                backoff.reset();
                if let Some(certificates) = verdict(&request, name)? {
                    return Ok(certificates);
                }
            }
            Err(error @ ApiClientError::Refused { .. }) => return Err(error.into()),
            Err(error) => {
                tracing::debug!(%error, request = name, "cannot ask about a certificate request");
                tokio::time::sleep(backoff.next()).await;
            }
        }
        if !is_told && begun.elapsed() >= PATIENCE {
            is_told = true;
            tracing::warn!(
                "the node waits for a certificate: approve of it with `kubectl certificate approve {name}`"
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// What has become of a request; `None` if nothing has.
fn verdict(request: &Value, name: &str) -> Result<Option<String>, BootstrapError> {
    let conditions = request["status"]["conditions"].as_array();
    for condition in conditions.into_iter().flatten() {
        if condition["type"] == "Denied" || condition["type"] == "Failed" {
            let why = condition["message"].as_str().filter(|why| !why.is_empty());
            let why = why
                .or_else(|| condition["reason"].as_str())
                .unwrap_or("no reason was given");
            return Err(BootstrapError::Refused {
                name: name.to_owned(),
                why: why.to_owned(),
            });
        }
    }
    let Some(text) = request["status"]["certificate"]
        .as_str()
        .filter(|text| !text.is_empty())
    else {
        return Ok(None);
    };
    let pem = STANDARD
        .decode(text)
        .map_err(|_| BootstrapError::ReadAnswer("it is not base64"))?;
    let pem = String::from_utf8(pem).map_err(|_| BootstrapError::ReadAnswer("it is no PEM"))?;
    if Period::of(pem.as_bytes()).is_none() {
        return Err(BootstrapError::ReadAnswer("it is no certificate"));
    }
    Ok(Some(pem))
}

/// From when to when a certificate is good, in seconds of the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Period {
    start: i64,
    end: i64,
}

impl Period {
    fn of(pem: &[u8]) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
        let validity = certificate.validity();
        Some(Self {
            start: validity.not_before.timestamp(),
            end: validity.not_after.timestamp(),
        })
    }

    fn lasts(self) -> bool {
        Timestamp::now().as_second() < self.end
    }

    /// How long to wait until it is to be renewed, when between seven and nine tenths of its time are over.
    fn wait(self, now: i64, chance: f64) -> Duration {
        let lifetime = self.end - self.start;
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds of a lifetime are far below the limit"
        )]
        let chosen = lifetime as f64 / 5.0 * chance;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a part of what was a whole number of seconds"
        )]
        let due = self.start + lifetime / 10 * 7 + chosen as i64;
        Duration::from_secs(u64::try_from(due - now).unwrap_or(0))
    }
}

fn read_certificate(path: &Path) -> Option<Period> {
    Period::of(&std::fs::read(path).ok()?)
}

fn read_issued(path: &Path) -> Option<IssuedCertificate> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(IssuedCertificate {
        certificates: text.clone(),
        key: text,
    })
}

/// Waits until the certificate in a file is to be renewed; not at all if there is none.
async fn until_due(path: &Path) {
    let chance = rand::random();
    while let Some(period) = read_certificate(path) {
        let wait = period.wait(Timestamp::now().as_second(), chance);
        if wait.is_zero() {
            return;
        }
        tokio::time::sleep(wait.min(LOOK_INTERVAL)).await;
    }
}

/// Writes a file that only its owner can read: whole or not at all, also after a crash.
fn write(path: &Path, text: &str) -> Result<(), BootstrapError> {
    pulselet_durable::replace(path, text.as_bytes(), 0o600).map_err(|source| BootstrapError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_before_it_ends() {
        let period = Period { start: 0, end: 1000 };
        assert_eq!(period.wait(0, 0.0), Duration::from_secs(700));
        assert_eq!(period.wait(0, 1.0), Duration::from_mins(15));
        assert_eq!(period.wait(950, 0.5), Duration::ZERO);
    }

    #[test]
    fn a_refusal_says_why_and_nonsense_is_no_certificate() {
        let denied = json!({"status": {"conditions": [{"type": "Denied", "message": "not here"}]}});
        let error = verdict(&denied, "csr-1").unwrap_err().to_string();
        assert!(error.contains("csr-1") && error.contains("not here"), "{error}");
        assert!(
            verdict(&json!({"status": {"conditions": [{"type": "Approved"}]}}), "x")
                .unwrap()
                .is_none()
        );
        assert!(verdict(&json!({}), "x").unwrap().is_none());
        let nonsense = json!({"status": {"certificate": STANDARD.encode("nonsense")}});
        assert!(verdict(&nonsense, "x").is_err());
    }
}
