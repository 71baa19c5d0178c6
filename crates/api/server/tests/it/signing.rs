//! Certificate signing requests: who gets what signed, and with whose approval.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::client::{Client, Credential};
use crate::harness::TestServer;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

/// A request, and the key that goes with it.
fn request(signer: &str, user: &str, group: &str, names: &[SanType]) -> (Value, KeyPair) {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, user);
    params.subject_alt_names = names.to_vec();
    let key = KeyPair::generate().expect("a key");
    let pem = params
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .expect("a request");
    let usage = if signer == NODE_SERVING {
        "server auth"
    } else {
        "client auth"
    };
    let spec = json!({"signerName": signer, "usages": ["digital signature", usage], "request": STANDARD.encode(pem)});
    let value = json!({"metadata": {"generateName": "csr-"}, "spec": spec});
    (value, key)
}

/// Sends a request and returns it as it is after that.
async fn send(client: &mut Client, admin: &mut Client, request: &Value) -> Value {
    let (code, made) = client.post(REQUESTS, request).await;
    assert_eq!(code, 201, "{made}");
    let name = made["metadata"]["name"].as_str().expect("a name");
    admin.get(&format!("{REQUESTS}/{name}")).await.1
}

fn certificate(request: &Value) -> Option<Vec<u8>> {
    let text = request["status"]["certificate"].as_str()?;
    Some(STANDARD.decode(text).expect("base64"))
}

fn bootstrapper(server: &TestServer) -> Credential {
    let text =
        pulselet_apiserver::bootstrap_kubeconfig(server.path(), &format!("https://{}", server.address), 1)
            .expect("a kubeconfig");
    let path = server.path().join("bootstrap.kubeconfig");
    std::fs::write(&path, text).expect("it is written");
    Credential::Kubeconfig(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_with_a_bootstrap_kubeconfig_and_renews_itself() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let mut joining = Client::connect(&server, bootstrapper(&server)).await;
    assert_eq!(
        joining.get("/api/v1/nodes").await.0,
        403,
        "it is good for nothing else"
    );
    let (asked, key) = request(NODE_CLIENT, "system:node:n7", "system:nodes", &[]);
    let answered = send(&mut joining, &mut admin, &asked).await;
    assert_eq!(answered["spec"]["username"], "system:bootstrap:pulselet");
    assert_eq!(answered["status"]["conditions"][0]["reason"], "AutoApproved");
    let pem = certificate(&answered).expect("it is signed");
    let chain = vec![CertificateDer::from_pem_slice(&pem).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
    let mut node = Client::connect(&server, Credential::Certificate(chain, key)).await;
    assert_eq!(node.get("/api/v1/nodes/n7").await.0, 404, "it is that node");
    assert_eq!(node.get("/api/v1/nodes/n8").await.0, 403);
    let (own, _) = request(NODE_CLIENT, "system:node:n7", "system:nodes", &[]);
    assert!(
        certificate(&send(&mut node, &mut admin, &own).await).is_some(),
        "it renews its own"
    );
    let (other, _) = request(NODE_CLIENT, "system:node:n8", "system:nodes", &[]);
    assert!(
        certificate(&send(&mut node, &mut admin, &other).await).is_none(),
        "and nobody else's"
    );
    // Its server certificate waits for somebody to approve of it.
    let names = [SanType::IpAddress([127, 0, 0, 1].into())];
    let (serving, _) = request(NODE_SERVING, "system:node:n7", "system:nodes", &names);
    let pending = send(&mut node, &mut admin, &serving).await;
    assert!(certificate(&pending).is_none());
    let name = pending["metadata"]["name"].as_str().expect("a name").to_owned();
    let Some(approved) = server.kubectl(&["certificate", "approve", &name]) else {
        return;
    };
    assert!(approved.success().contains("approved"));
    let signed = admin.get(&format!("{REQUESTS}/{name}")).await.1;
    let pem = certificate(&signed).expect("it is signed");
    let der = CertificateDer::from_pem_slice(&pem).expect("a certificate");
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).expect("a certificate");
    let usage = parsed
        .extended_key_usage()
        .expect("an extension")
        .expect("usages");
    assert!(usage.value.server_auth && !usage.value.client_auth);
    let table = server.kubectl(&["get", "csr", &name]).expect("kubectl").success();
    assert!(
        table.contains("Approved,Issued") && table.contains("system:node:n7"),
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_is_good_for_joining_as_long_as_its_secret_says_so() {
    const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
    const TOKEN: &str = "abcdef.0123456789abcdef";
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let token = || Credential::Token(TOKEN.to_owned());
    let mut joining = Client::connect(&server, token()).await;
    let (asked, _) = request(NODE_CLIENT, "system:node:n7", "system:nodes", &[]);
    assert_eq!(
        joining.post(REQUESTS, &asked).await.0,
        401,
        "there is no such token"
    );
    let mut secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "2020-01-01T00:00:00Z",
            "usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"}});
    assert_eq!(admin.post(SECRETS, &secret).await.0, 201);
    assert_eq!(joining.post(REQUESTS, &asked).await.0, 401, "it has expired");
    secret["stringData"]["expiration"] = json!("2120-01-01T00:00:00Z");
    let own = format!("{SECRETS}/bootstrap-token-abcdef");
    assert_eq!(admin.json(http::Method::PUT, &own, Some(&secret)).await.0, 200);
    let answered = send(&mut joining, &mut admin, &asked).await;
    assert_eq!(answered["spec"]["username"], "system:bootstrap:abcdef");
    let groups = &answered["spec"]["groups"];
    let expected = [
        "system:bootstrappers",
        "system:bootstrappers:kubeadm:default-node-token",
        "system:authenticated",
    ];
    assert_eq!(groups, &json!(expected));
    assert!(certificate(&answered).is_some(), "it is approved and signed");
    assert_eq!(
        joining.get("/api/v1/nodes").await.0,
        403,
        "it is good for nothing else"
    );
    let mut liar = Client::connect(&server, Credential::Token("abcdef.0123456789abcdee".to_owned())).await;
    assert_eq!(liar.post(REQUESTS, &asked).await.0, 401);
    assert_eq!(admin.json(http::Method::DELETE, &own, None).await.0, 200);
    assert_eq!(joining.post(REQUESTS, &asked).await.0, 401, "it was taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_its_signer_is_not_signed() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let mut joining = Client::connect(&server, bootstrapper(&server)).await;
    let name = SanType::DnsName("n7".try_into().expect("a name"));
    for (signer, user, group, names) in [
        (NODE_CLIENT, "system:node:n7", "system:masters", &[][..]),
        (NODE_CLIENT, "ann", "system:nodes", &[]),
        (
            NODE_CLIENT,
            "system:node:n7",
            "system:nodes",
            std::slice::from_ref(&name),
        ),
        (
            NODE_SERVING,
            "system:node:n7",
            "system:nodes",
            std::slice::from_ref(&name),
        ),
    ] {
        let (asked, _) = request(signer, user, group, names);
        let answered = send(&mut joining, &mut admin, &asked).await;
        assert!(certificate(&answered).is_none(), "{signer} {user} {group}");
        let name = answered["metadata"]["name"].as_str().expect("a name");
        let Some(approved) = server.kubectl(&["certificate", "approve", name]) else {
            return;
        };
        approved.success();
        let failed = admin.get(&format!("{REQUESTS}/{name}")).await.1;
        assert!(
            certificate(&failed).is_none(),
            "not with approval either: {failed}"
        );
        assert_eq!(failed["status"]["conditions"][1]["type"], "Failed", "{failed}");
    }
    let (good, _) = request(NODE_CLIENT, "system:node:n7", "system:nodes", &[]);
    let mut nonsense = good.clone();
    nonsense["spec"]["request"] = json!(STANDARD.encode("nonsense"));
    assert_eq!(joining.post(REQUESTS, &nonsense).await.0, 422);
    let mut forged = good;
    forged["spec"]["username"] = json!("admin");
    forged["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": "eA=="});
    let answered = send(&mut joining, &mut admin, &forged).await;
    assert_eq!(answered["spec"]["username"], "system:bootstrap:pulselet");
    assert_ne!(answered["status"]["certificate"], "eA==");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_signed_for_when_somebody_approves_and_not_when_denied() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let signer = "kubernetes.io/kube-apiserver-client";
    for (verdict, expected) in [("approve", true), ("deny", false)] {
        let (asked, _) = request(signer, "ann", "team", &[]);
        let (code, made) = admin.post(REQUESTS, &asked).await;
        assert_eq!(code, 201, "{made}");
        let name = made["metadata"]["name"].as_str().expect("a name");
        let Some(answer) = server.kubectl(&["certificate", verdict, name]) else {
            return;
        };
        answer.success();
        let answered = admin.get(&format!("{REQUESTS}/{name}")).await.1;
        assert_eq!(certificate(&answered).is_some(), expected, "{answered}");
    }
}
