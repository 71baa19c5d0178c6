//! The store of an earlier version.

use tempfile::TempDir;

use crate::client::Client;
use crate::harness::TestServer;

/// A data directory with the store that the program wrote when it had its first format.
fn first_format() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let from = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testing/data/first-format/api.db"
    );
    std::fs::copy(from, directory.path().join("api.db")).expect("a copy");
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_the_first_format_is_gone_on_with() {
    let server = TestServer::start_in(first_format(), |_| {});
    let mut client = Client::admin(&server).await;
    let (code, map) = client.get("/api/v1/namespaces/default/configmaps/kept").await;
    assert_eq!((code, &map["data"]["a"]), (200, &serde_json::json!("b")));
    let (code, pod) = client.get("/api/v1/namespaces/default/pods/asked").await;
    assert_eq!(code, 200);
    let app = &pod["spec"]["containers"][0];
    assert_eq!(app["lifecycle"]["stopSignal"], "SIGUSR1");
    assert_eq!(app["livenessProbe"]["terminationGracePeriodSeconds"], 3);
    let labels = serde_json::json!({"metadata": {"labels": {"read": "again"}}});
    let asked = "/api/v1/namespaces/default/pods/asked";
    let content_type = "application/merge-patch+json";
    let answer = client
        .send(http::Method::PATCH, asked, content_type, labels.to_string())
        .await;
    assert_eq!(answer.status(), 200);
}
