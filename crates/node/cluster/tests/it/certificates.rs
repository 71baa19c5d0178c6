//! A node whose client certificate ended while it was away.

use std::path::{Path, PathBuf};

use pulselet_cluster::{ApiClient, Kubeconfig, bootstrap, renew_client};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, date_time_ymd};

use crate::harness::{NODE, World, eventually};

/// The files of a node that joined long ago.
struct Files {
    directory: PathBuf,
    bootstrap: PathBuf,
}

impl Files {
    /// Joins, and then lets years pass.
    async fn of_node_that_joined(world: &World) -> Self {
        let directory = world.directory.path().join("joined");
        std::fs::create_dir(&directory).expect("a directory");
        let files = Self {
            bootstrap: world.directory.path().join("bootstrap.kubeconfig"),
            directory,
        };
        files.write_bootstrap(world);
        let kubeconfig = files.bootstrap().await;
        assert_eq!(kubeconfig, files.directory.join("node.kubeconfig"));
        std::fs::write(
            files.certificate(),
            expired(&world.directory.path().join("api/pki")),
        )
        .expect("a certificate");
        files
    }

    async fn bootstrap(&self) -> PathBuf {
        bootstrap(&self.bootstrap, &self.directory, NODE)
            .await
            .expect("a kubeconfig to join with")
    }

    fn certificate(&self) -> PathBuf {
        self.directory.join("node-client.pem")
    }

    fn write_bootstrap(&self, world: &World) {
        let api = world.api();
        let text = pulselet_apiserver::bootstrap_kubeconfig(api.directory(), &api.url(), 1);
        std::fs::write(&self.bootstrap, text.expect("a kubeconfig")).expect("it is written");
    }

    /// Renews the certificate in the background, as a node does that runs.
    fn renew(&self, kubeconfig: &Path) {
        let client = ApiClient::new(Kubeconfig::load(kubeconfig).expect("a kubeconfig"));
        let (bootstrap, directory) = (self.bootstrap.clone(), self.directory.clone());
        // The test's runtime ends it.
        drop(renew_client(client, bootstrap, directory, NODE.to_owned()));
    }

    async fn until_other_than(&self, old: &str) {
        eventually("another certificate", || async {
            let text = std::fs::read_to_string(self.certificate()).expect("a certificate");
            (text != old).then_some(())
        })
        .await;
    }
}

/// A node's certificate and key whose time is over, of the authority in a directory.
fn expired(pki: &Path) -> String {
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).expect("a file of the authority");
    let authority = KeyPair::from_pem(&read("ca.key")).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&read("ca.crt"), authority).expect("an authority");
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{NODE}"));
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("a key");
    let signed = params.signed_by(&key, &issuer).expect("a certificate");
    format!("{}{}", signed.pem(), key.serialize_pem())
}

#[tokio::test]
async fn a_certificate_that_ended_while_the_node_ran_is_had_anew_by_the_bootstrap_credential() {
    let world = World::new().await;
    let files = Files::of_node_that_joined(&world).await;
    let old = std::fs::read_to_string(files.certificate()).expect("a certificate");
    files.renew(&files.directory.join("node.kubeconfig"));
    files.until_other_than(&old).await;
}

#[tokio::test]
async fn a_node_starts_with_an_ended_certificate_and_recovers_when_it_gets_a_bootstrap_kubeconfig() {
    let world = World::new().await;
    let files = Files::of_node_that_joined(&world).await;
    std::fs::remove_file(&files.bootstrap).expect("it is removed");
    // It has pods to run, so it does not wait.
    let kubeconfig = files.bootstrap().await;
    let old = std::fs::read_to_string(files.certificate()).expect("a certificate");
    files.renew(&kubeconfig);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(
        std::fs::read_to_string(files.certificate()).expect("a certificate"),
        old
    );
    files.write_bootstrap(&world);
    files.until_other_than(&old).await;
}

#[tokio::test]
async fn a_node_with_an_ended_certificate_starts_while_the_api_is_away() {
    let mut world = World::new().await;
    let files = Files::of_node_that_joined(&world).await;
    world.stop_api().await;
    let kubeconfig = files.bootstrap().await;
    let old = std::fs::read_to_string(files.certificate()).expect("a certificate");
    files.renew(&kubeconfig);
    world.start_api().await;
    files.until_other_than(&old).await;
}
