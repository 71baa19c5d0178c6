//! Pulling by way of mirrors: real registries, of which one is away, wrong or broken, and one that would like credentials.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use pulselet_image::{Auth, Digest, Image, PullError, Reference};
use serde_json::json;

use crate::builder::{Fixture, Layer, config, gzip, root};
use crate::registry::{Script, Server, answer, reference};

/// A registry whose name leads nowhere.
const NOWHERE: &str = "registry.invalid";

/// Puts an image with one file into a registry; the descriptor of its layer.
async fn push(server: &Server) -> serde_json::Value {
    let layer = Layer::new().file("a", "1").finish();
    let packed = gzip(&layer);
    let descriptor = json!({"digest": Digest::of(&packed)});
    let config = config(&[layer], &json!({}));
    server.push_image("1", &config, vec![packed]).await;
    descriptor
}

/// Pulls by way of one mirror.
async fn pull(reference: &Reference, mirror: SocketAddr, auth: Auth) -> Result<Image, PullError> {
    let fixture = Fixture::new();
    let mirror = format!("{}=http://{mirror}", reference.registry());
    let store = fixture
        .store
        .clone()
        .with_mirrors(vec![mirror.parse().expect("a mirror")]);
    let image = store.pull(reference, auth, Arc::new(|_| {})).await?;
    assert_eq!(fs::read_to_string(image.layers[0].join("a")).unwrap(), "1");
    Ok(image)
}

fn secret() -> Auth {
    Auth::Basic {
        username: "user".to_owned(),
        password: "secret".to_owned(),
    }
}

#[tokio::test]
async fn a_mirror_answers_for_a_registry_that_does_not() {
    let Some(mirror) = Server::start(false).filter(|_| root()) else {
        return;
    };
    push(&mirror).await;
    let name: Reference = format!("{NOWHERE}/test:1").parse().unwrap();
    let image = pull(&name, mirror.address, secret()).await.unwrap();
    assert_eq!(
        image.references,
        [name],
        "it has the name that it has in the registry"
    );
}

#[tokio::test]
async fn a_registry_gives_what_its_mirror_does_not() {
    let Some(registry) = Server::start(true).filter(|_| root()) else {
        return;
    };
    push(&registry).await;
    let name = reference(registry.address, ":1");
    // Nobody listens there.
    let away = SocketAddr::from(([127, 0, 0, 1], 1));
    pull(&name, away, secret()).await.unwrap();
    let Some(empty) = Server::start(false) else { return };
    pull(&name, empty.address, secret()).await.unwrap();
    for broken in [None, Some(&b"nonsense"[..])] {
        let Some(mirror) = Server::start(false) else {
            return;
        };
        let layer = push(&mirror).await;
        let file = mirror.blob_file(&layer);
        match broken {
            None => fs::remove_file(file).unwrap(),
            Some(bytes) => fs::write(file, bytes).unwrap(),
        }
        pull(&name, mirror.address, secret()).await.unwrap();
    }
    let wrong = Script::start(|_| answer("200 OK", "content-type: text/html\r\n", b"<p>Welcome</p>")).await;
    pull(&name, wrong.address, secret()).await.unwrap();
}

#[tokio::test]
async fn a_mirror_never_sees_credentials() {
    let Some(registry) = Server::start(true).filter(|_| root()) else {
        return;
    };
    push(&registry).await;
    let name = reference(registry.address, ":1");
    for wanted in ["Basic realm=\"x\"", "Bearer realm=\"http://HERE/token\""] {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heads);
        let thief = Script::start(move |head| {
            let head = head.to_ascii_lowercase();
            let host = head.lines().find_map(|line| line.strip_prefix("host: "));
            let wanted = wanted.replace("HERE", host.unwrap_or_default());
            let header = format!("www-authenticate: {wanted}\r\n");
            seen.lock().unwrap().push(head);
            answer("401 Unauthorized", &header, b"")
        })
        .await;
        pull(&name, thief.address, secret()).await.unwrap();
        let heads = heads.lock().unwrap();
        assert!(!heads.is_empty(), "it was asked");
        assert!(
            !heads.iter().any(|head| head.contains("authorization")),
            "{heads:?}"
        );
    }
    // Nor does the registry get by without them.
    let away = SocketAddr::from(([127, 0, 0, 1], 1));
    assert!(pull(&name, away, Auth::Anonymous).await.unwrap_err().is_denied());
}
