//! The server's own certificate authority, and what it issues.
//!
//! It is made at the first start and kept in the data directory, with a key that only the owner can read. Certificates
//! of the server are made anew at every start, and while it runs ([`super::own_certificate`]); those of clients are handed
//! out in kubeconfig files and not kept. Those files that the server writes itself get a new certificate when two thirds of
//! the old one's time are over.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Span, Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// How long the authority is good for.
const AUTHORITY_YEARS: i16 = 10;
/// How long what it issues is good for.
const CERTIFICATE_YEARS: i16 = 1;
/// How long a client certificate is good for that the server itself renews while it runs.
pub(crate) const RENEWED_DAYS: i16 = 30;
const AUTHORITY_NAME: &str = "pulselet-ca";
/// Who has a bootstrap kubeconfig.
const BOOTSTRAP_USER: &str = "system:bootstrap:pulselet";
const BOOTSTRAP_GROUP: &str = "system:bootstrappers";
/// By how much a certificate that was asked for is valid before it was.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{key} is missing while {certificate} is there; put the key back, or remove the certificate too to begin with a \
         new authority, whose kubeconfigs then have to be handed out again"
    )]
    LostKey { key: PathBuf, certificate: PathBuf },
    #[error("the key in {path} cannot be used: {source}")]
    ParseKey { path: PathBuf, source: rcgen::Error },
    #[error("cannot make a certificate for {subject}: {source}")]
    Issue { subject: String, source: rcgen::Error },
    #[error("the certificate authority cannot be used: {message}")]
    Use { message: String },
}

/// The certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    certificate: CertificateDer<'static>,
}

/// A certificate with its key.
#[derive(Debug)]
pub(crate) struct Credential {
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
    pub certificate_pem: String,
    pub key_pem: String,
}

impl Authority {
    /// Loads the authority from a directory, or makes it there.
    pub(crate) fn load_or_create(directory: &Path) -> Result<Self, PkiError> {
        let failed = |source| PkiError::Write {
            path: directory.to_owned(),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        let (key_path, certificate_path) = (directory.join("ca.key"), directory.join("ca.crt"));
        let key = match fs::read_to_string(&key_path) {
            Ok(pem) => KeyPair::from_pem(&pem).map_err(|source| PkiError::ParseKey {
                path: key_path,
                source,
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && certificate_path.exists() => {
                // A new key would not fit the certificate that clients trust.
                return Err(PkiError::LostKey {
                    key: key_path,
                    certificate: certificate_path,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = KeyPair::generate().map_err(issue_failed(AUTHORITY_NAME))?;
                write_private(&key_path, key.serialize_pem().as_bytes())?;
                key
            }
            Err(source) => {
                return Err(PkiError::Read {
                    path: key_path,
                    source,
                });
            }
        };
        let certificate_pem = match fs::read_to_string(&certificate_path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let certificate = authority_params()
                    .self_signed(&key)
                    .map_err(issue_failed(AUTHORITY_NAME))?;
                write_private(&certificate_path, certificate.pem().as_bytes())?;
                certificate.pem()
            }
            Err(source) => {
                return Err(PkiError::Read {
                    path: certificate_path,
                    source,
                });
            }
        };
        let certificate =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|error| PkiError::Read {
                path: certificate_path,
                source: io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
            })?;
        Ok(Self {
            issuer: Issuer::new(authority_params(), key),
            certificate_pem,
            certificate,
        })
    }

    pub(crate) const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A certificate for a server reachable under these names and addresses.
    pub(crate) fn issue_server(
        &self,
        subject: &str,
        names: &[&str],
        addresses: &[IpAddr],
    ) -> Result<Credential, PkiError> {
        let mut params = leaf_params(subject, &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let name = (*name).try_into().map_err(issue_failed(name))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let addresses = addresses.iter().map(|address| SanType::IpAddress(*address));
        params.subject_alt_names.extend(addresses);
        self.issue(subject, &params)
    }

    /// A certificate that proves a user and its groups.
    pub(crate) fn issue_client(&self, user: &str, groups: &[&str]) -> Result<Credential, PkiError> {
        self.issue_client_for(user, groups, CERTIFICATE_YEARS.years())
    }

    /// One that is renewed while the server runs, and so need not last.
    pub(crate) fn issue_renewed_client(&self, user: &str, groups: &[&str]) -> Result<Credential, PkiError> {
        self.issue_client_for(user, groups, RENEWED_DAYS.days())
    }

    /// One whose time is over.
    #[cfg(test)]
    pub(crate) fn issue_expired_client(&self, user: &str, group: &str) -> Result<Credential, PkiError> {
        let mut params = leaf_params(user, &[group]);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 2, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(user, &params)
    }

    fn issue_client_for(&self, user: &str, groups: &[&str], lifetime: Span) -> Result<Credential, PkiError> {
        let mut params = leaf_params(user, groups);
        set_period(&mut params, lifetime);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(user, &params)
    }

    /// Signs what a request asks for; returns the certificate in PEM.
    pub(crate) fn sign_request(
        &self,
        user: &str,
        groups: &[&str],
        usage: ExtendedKeyUsagePurpose,
        request: &CertificateSigningRequestParams,
        seconds: i64,
    ) -> Result<String, PkiError> {
        let mut params = leaf_params(user, groups);
        params.extended_key_usages = vec![usage];
        params
            .subject_alt_names
            .clone_from(&request.params.subject_alt_names);
        let now = Timestamp::now();
        let ends = now.checked_add(seconds.seconds()).unwrap_or(now);
        // Clocks differ a little.
        set_moments(&mut params, now.checked_sub(CLOCK_SKEW).unwrap_or(now), ends);
        let signed = params.signed_by(&request.public_key, &self.issuer);
        signed
            .map(|certificate| certificate.pem())
            .map_err(issue_failed(user))
    }

    fn issue(&self, subject: &str, params: &CertificateParams) -> Result<Credential, PkiError> {
        let key = KeyPair::generate().map_err(issue_failed(subject))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(issue_failed(subject))?;
        Ok(Credential {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }

    /// Writes a kubeconfig, readable by the owner alone.
    pub(crate) fn write_kubeconfig_of(
        &self,
        path: &Path,
        server: &str,
        user: &str,
        credential: &Credential,
    ) -> Result<(), PkiError> {
        write_private(path, self.kubeconfig(server, user, credential).as_bytes())
    }

    fn kubeconfig(&self, server: &str, user: &str, credential: &Credential) -> String {
        let encode = |pem: &str| STANDARD.encode(pem);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: pulselet\nclusters:\n- name: pulselet\n  cluster:\n    \
             server: {server}\n    certificate-authority-data: {}\ncontexts:\n- name: pulselet\n  context:\n    \
             cluster: pulselet\n    user: {user}\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\n",
            encode(&self.certificate_pem),
            encode(&credential.certificate_pem),
            encode(&credential.key_pem),
        )
    }
}

impl Credential {
    fn parse(certificate_pem: String, key_pem: String) -> Option<Self> {
        Some(Self {
            certificate: CertificateDer::from_pem_slice(certificate_pem.as_bytes()).ok()?,
            key: PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).ok()?,
            certificate_pem,
            key_pem,
        })
    }

    /// Whether two thirds of its time are over; also if that cannot be told.
    pub(crate) fn is_due(&self) -> bool {
        let now = Timestamp::now().as_second();
        self.first_two_thirds().is_none_or(|time| now >= time.end)
    }

    /// The time in which there is no need for another, in seconds of the epoch; `None` if that cannot be told.
    pub(crate) fn first_two_thirds(&self) -> Option<Range<i64>> {
        let (_, certificate) = x509_parser::parse_x509_certificate(&self.certificate).ok()?;
        let validity = certificate.validity();
        let (start, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        Some(start..start + (end - start) / 3 * 2)
    }
}

/// The certificate and key in a kubeconfig that was written here; `None` if there is none.
pub(crate) fn read_kubeconfig(path: &Path) -> Option<Credential> {
    let text = fs::read_to_string(path).ok()?;
    let member = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        String::from_utf8(STANDARD.decode(line.trim()).ok()?).ok()
    };
    Credential::parse(member("client-certificate-data:")?, member("client-key-data:")?)
}

/// A kubeconfig with which nodes can ask the server whose data is in a directory for certificates of their own, for so many
/// days, as text.
pub fn bootstrap_kubeconfig(data_dir: &Path, server: &str, days: i16) -> Result<String, PkiError> {
    let authority = existing_authority(data_dir)?;
    let credential = authority.issue_client_for(BOOTSTRAP_USER, &[BOOTSTRAP_GROUP], days.days())?;
    Ok(authority.kubeconfig(server, BOOTSTRAP_USER, &credential))
}

/// A kubeconfig with which a node can join the server whose data is in a directory, as text.
pub fn node_kubeconfig(data_dir: &Path, server: &str, node: &str) -> Result<String, PkiError> {
    let authority = existing_authority(data_dir)?;
    let user = format!("{}{node}", crate::access::NODE_USER_PREFIX);
    let credential = authority.issue_client(&user, &[crate::access::NODE_GROUP])?;
    Ok(authority.kubeconfig(server, &user, &credential))
}

/// The authority of a server; asking must not make one that no server uses.
fn existing_authority(data_dir: &Path) -> Result<Authority, PkiError> {
    let directory = data_dir.join("pki");
    let certificate = directory.join("ca.crt");
    fs::metadata(&certificate).map_err(|source| PkiError::Read {
        path: certificate,
        source,
    })?;
    Authority::load_or_create(&directory)
}

fn issue_failed(subject: &str) -> impl FnOnce(rcgen::Error) -> PkiError {
    let subject = subject.to_owned();
    move |source| PkiError::Issue { subject, source }
}

fn authority_params() -> CertificateParams {
    let mut params = dated_params(AUTHORITY_YEARS);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn leaf_params(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = dated_params(CERTIFICATE_YEARS);
    params.distinguished_name = DistinguishedName::new();
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

/// Makes a certificate valid from one moment to another.
fn set_moments(params: &mut CertificateParams, from: Timestamp, to: Timestamp) {
    let date_time = |time: Timestamp| {
        let civil = time.to_zoned(TimeZone::UTC).datetime();
        // Months and days are positive, so nothing is lost.
        let (month, day) = (civil.month().unsigned_abs(), civil.day().unsigned_abs());
        let midnight = date_time_ymd(i32::from(civil.year()), month, day);
        let hours = i64::from(civil.hour()) * 60 + i64::from(civil.minute());
        let seconds = hours * 60 + i64::from(civil.second());
        midnight + std::time::Duration::from_secs(seconds.unsigned_abs())
    };
    params.not_before = date_time(from);
    params.not_after = date_time(to);
}

fn dated_params(years: i16) -> CertificateParams {
    let mut params = CertificateParams::default();
    set_period(&mut params, years.years());
    params
}

/// Makes a certificate valid from yesterday on, because clocks differ, and for so long.
fn set_period(params: &mut CertificateParams, lifetime: Span) {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let yesterday = today.saturating_sub(1.day());
    let ymd = |date: jiff::civil::Date| {
        // Months and days are positive, so nothing is lost.
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        date_time_ymd(i32::from(date.year()), month, day)
    };
    params.not_before = ymd(yesterday);
    params.not_after = ymd(today.saturating_add(lifetime));
}

/// Writes a file that only its owner can read: whole or not at all, also after a crash.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), PkiError> {
    let failed = |source| PkiError::Write {
        path: path.to_owned(),
        source,
    };
    pulselet_durable::replace(path, bytes, 0o600).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_due_after_two_thirds_of_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_create(directory.path()).unwrap();
        let issue = |start: i16, end: i16| {
            let date = |years: i16| {
                let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
                let date = today.saturating_add(years.years());
                date_time_ymd(
                    i32::from(date.year()),
                    date.month().unsigned_abs(),
                    date.day().unsigned_abs().min(28),
                )
            };
            let mut params = leaf_params("ann", &[]);
            (params.not_before, params.not_after) = (date(start), date(end));
            authority.issue("ann", &params).unwrap()
        };
        assert!(!issue(-1, 1).is_due(), "half of it is over");
        assert!(issue(-5, 1).is_due());
        assert!(issue(-2, -1).is_due(), "all of it is over");
        let path = directory.path().join("kubeconfig");
        let written = issue(-1, 1);
        authority
            .write_kubeconfig_of(&path, "https://x", "ann", &written)
            .unwrap();
        let read = read_kubeconfig(&path).unwrap();
        assert_eq!(
            (read.certificate_pem, read.key_pem),
            (written.certificate_pem, written.key_pem)
        );
        fs::write(&path, "client-certificate-data: x\nclient-key-data: y\n").unwrap();
        assert!(read_kubeconfig(&path).is_none());
    }
}
