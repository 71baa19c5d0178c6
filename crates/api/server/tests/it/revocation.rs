//! Certificates that the administrator takes back, and when they are renewed.

use std::fs;
use std::path::Path;

use crate::client::{Client, Credential};
use crate::harness::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The serial number of the certificate in a kubeconfig, as openssl shows it.
fn serial(kubeconfig: &Path) -> String {
    use base64::Engine;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let text = fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("client-certificate-data: "))
        .expect("a certificate");
    let pem = base64::engine::general_purpose::STANDARD
        .decode(line)
        .expect("base64");
    let der = CertificateDer::from_pem_slice(&pem).expect("a certificate");
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).expect("a certificate");
    certificate.tbs_certificate.raw_serial_as_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused_at_once_and_on_standing_connections() {
    let server = TestServer::start();
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut admin = Client::admin(&server).await;
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig.clone())).await;
    let own = "/api/v1/nodes/n1";
    assert_eq!(node.get(own).await.0, 404, "it may ask");
    let list = server.path().join("pki/revoked");
    fs::write(&list, format!("# lost\n{}\n", serial(&kubeconfig))).expect("writes");
    assert_eq!(node.get(own).await.0, 401, "on the connection that stands");
    let mut again = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    assert_eq!(again.get(own).await.0, 401);
    assert_eq!(admin.get(PODS).await.0, 200, "others are not concerned");
    fs::write(&list, "user:admin\n").expect("writes");
    assert_eq!(admin.get(PODS).await.0, 401);
    assert_eq!(
        again.get(own).await.0,
        404,
        "what is no longer listed counts again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrators_certificate_stays_until_it_is_due_or_taken_back() {
    let server = TestServer::start();
    let before = serial(&server.kubeconfig);
    let server = TestServer::start_in(server.stop(), |_| {});
    assert_eq!(serial(&server.kubeconfig), before, "a restart makes no new one");
    assert_eq!(Client::admin(&server).await.get(PODS).await.0, 200);
    fs::write(server.path().join("pki/revoked"), &before).expect("writes");
    let server = TestServer::start_in(server.stop(), |_| {});
    assert_ne!(serial(&server.kubeconfig), before, "a lost one is replaced");
    assert_eq!(Client::admin(&server).await.get(PODS).await.0, 200);
}
