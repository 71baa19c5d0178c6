//! What pods serve themselves, through the API.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::client::{Client, Credential, collect};
use crate::harness::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// An address of this machine that is not loopback; no packet is sent for it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    Some(address).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// Answers each request with a redirect or with what was asked.
async fn serve(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        // The body is as long as its word, which the test ends with a full stop.
        while let Ok(count) = stream.read(&mut chunk).await {
            request.extend_from_slice(&chunk[..count]);
            let text = String::from_utf8_lossy(&request);
            let is_post = text.starts_with("POST");
            if count == 0 || (!is_post && text.contains("\r\n\r\n")) || text.ends_with("body.") {
                break;
            }
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let location = match text.split(' ').nth(1) {
            Some("/inside") => "Location: /there?x=1\r\n",
            Some("/outside") => "Location: http://example.com/\r\n",
            _ => "",
        };
        let code = if location.is_empty() {
            "200 OK"
        } else {
            "302 Found"
        };
        let head = format!(
            "HTTP/1.1 {code}\r\n{location}Connection: close\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        let _ = stream.write_all((head + &text).as_bytes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_asked_with_everything_but_the_credentials() {
    let address = own_address();
    if !pulselet_testing::requires("an address beside loopback", address.is_some()) {
        return;
    }
    let Some(address) = address else { return };
    let listener = TcpListener::bind(SocketAddr::new(address, 0))
        .await
        .expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(serve(listener));
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let pod = json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"nodeName": "n1", "containers": [
        {"name": "app", "image": "app", "ports": [{"name": "http", "containerPort": port}]}]}});
    assert_eq!(admin.post(PODS, &pod).await.0, 201);
    assert_eq!(
        admin.get(&format!("{PODS}/web/proxy/")).await.0,
        503,
        "it has no address"
    );
    let service = json!({"metadata": {"name": "front"}, "spec": {"selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "other", "port": 81}]}});
    assert_eq!(admin.post(SERVICES, &service).await.0, 201);
    let (code, unready) = admin.get(&format!("{SERVICES}/front:http/proxy/")).await;
    assert_eq!(code, 503, "{unready}");
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    let status = json!({"status": {"podIP": address.to_string(), "conditions": conditions}});
    let patch = "application/merge-patch+json";
    let patched = admin
        .send(
            Method::PATCH,
            &format!("{PODS}/web/status"),
            patch,
            status.to_string(),
        )
        .await;
    assert_eq!(collect(patched).await.0, 200);
    for place in [
        format!("{PODS}/web"),
        format!("{PODS}/web:http"),
        format!("{PODS}/http:web:{port}"),
        format!("{SERVICES}/front:http"),
        format!("{SERVICES}/http:front:80"),
    ] {
        let asked = format!("{place}/proxy/a/b?c=d");
        let (code, body) = collect(admin.send(Method::POST, &asked, "text/plain", "body.").await).await;
        let text = String::from_utf8_lossy(&body).to_lowercase();
        assert_eq!(code, 200, "{text}");
        assert!(
            text.starts_with("post /a/b?c=d http/1.1") && text.ends_with("body."),
            "{text}"
        );
        assert!(!text.contains("authorization"), "{text}");
    }
    let inside = admin
        .send(Method::GET, &format!("{PODS}/web/proxy/inside"), "", "")
        .await;
    assert_eq!(
        inside.headers()["location"].to_str().unwrap(),
        format!("{PODS}/web/proxy/there?x=1")
    );
    let _ = collect(inside).await;
    assert_eq!(admin.get(&format!("{PODS}/web/proxy/outside")).await.0, 503);
    assert_eq!(admin.get(&format!("{SERVICES}/front:82/proxy/")).await.0, 400);
    assert_eq!(admin.get(&format!("{SERVICES}/none/proxy/")).await.0, 404);
    let inside = admin
        .send(Method::GET, &format!("{SERVICES}/front:80/proxy/inside"), "", "")
        .await;
    let location = inside.headers()["location"].to_str().unwrap();
    assert_eq!(location, format!("{SERVICES}/front:80/proxy/there?x=1"));
    let _ = collect(inside).await;
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    assert_eq!(node.get(&format!("{SERVICES}/front:80/proxy/")).await.0, 403);
    if let Some(answer) = server.kubectl(&["get", "--raw", &format!("{PODS}/web:{port}/proxy/raw")]) {
        assert!(answer.success().starts_with("GET /raw"));
    }
}
