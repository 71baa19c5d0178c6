//! Pulling from mirrors: which place is asked, what is taken from it, and who sees credentials.

use std::sync::Arc;

use pulselet_image::{Auth, Image, PullError, Reference, RegistryMirror};
use serde_json::json;

use crate::builder::{Fixture, Layer, config, root};
use crate::recorded::Recorded;
use crate::registry::{Server, answer, reference};

/// A registry that nobody can reach: names below `.invalid` are nobody's.
const AWAY: &str = "registry.invalid";

fn mirror(registry: &str, address: impl std::fmt::Display) -> RegistryMirror {
    format!("{registry}=http://{address}")
        .parse()
        .expect("is a mirror")
}

async fn push(server: &Server, text: &str) -> serde_json::Value {
    let layers = [Layer::new().file("from", text).finish()];
    let config = config(&layers, &json!({}));
    server.push_image("1", &config, layers.to_vec()).await
}

async fn pull(mirrors: Vec<RegistryMirror>, name: &Reference, auth: Auth) -> Result<String, PullError> {
    let fixture = Fixture::new();
    let store = fixture.store.clone().with_mirrors(mirrors);
    let image = store.pull(name, auth, Arc::new(|_| {})).await?;
    assert_eq!(image.references, std::slice::from_ref(name), "it keeps its name");
    Ok(came_from(&image))
}

fn came_from(image: &Image) -> String {
    std::fs::read_to_string(image.layers[0].join("from")).expect("has the file")
}

#[tokio::test]
async fn a_mirror_stands_for_a_registry_that_is_away() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    push(&server, "mirror").await;
    let name: Reference = format!("{AWAY}/test:1").parse().expect("is a name");
    let given = pull(vec![mirror(AWAY, server.address)], &name, Auth::Anonymous).await;
    assert_eq!(given.expect("the mirror has it"), "mirror");
    let of_another = vec![mirror("other.invalid", server.address)];
    assert!(pull(of_another, &name, Auth::Anonymous).await.is_err());
}

/// Mirrors that are away, have nothing, answer with a page of theirs, or have a blob that is damaged.
#[tokio::test]
async fn what_a_mirror_cannot_give_comes_from_the_next_place() {
    let servers = (Server::start(false), Server::start(false), Server::start(false));
    let ((Some(origin), Some(empty), Some(damaged)), true) = (servers, root()) else {
        return;
    };
    push(&origin, "origin").await;
    let layers = [Layer::new().file("from", "mirror").finish()];
    let layer = damaged.push_blob(layers[0].clone()).await;
    push(&damaged, "mirror").await;
    std::fs::write(damaged.blob_file(&layer), "damaged").expect("writes");
    let page = Recorded::start(|_| answer("200 OK", "content-type: text/html\r\n", b"<p>Welcome</p>")).await;
    let name = reference(origin.address, ":1");
    let registry = origin.address.to_string();
    let places = [
        "127.0.0.1:1".to_owned(),
        empty.address.to_string(),
        page.script.address.to_string(),
        damaged.address.to_string(),
    ];
    let mirrors = places.iter().map(|place| mirror(&registry, place)).collect();
    let given = pull(mirrors, &name, Auth::Anonymous).await;
    assert_eq!(given.expect("the registry has it"), "origin");
    assert!(!page.heads().is_empty(), "it was asked");
}

#[tokio::test]
async fn mirrors_see_no_credentials() {
    let Some(origin) = Server::start(true).filter(|_| root()) else {
        return;
    };
    push(&origin, "origin").await;
    let thief =
        Recorded::start(|_| answer("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", b"")).await;
    let name = reference(origin.address, ":1");
    let mirrors = vec![mirror(&origin.address.to_string(), thief.script.address)];
    let auth = Auth::Basic {
        username: "user".to_owned(),
        password: "secret".to_owned(),
    };
    let given = pull(mirrors, &name, auth).await;
    assert_eq!(given.expect("the registry knows the user"), "origin");
    assert!(!thief.heads().is_empty(), "it was asked");
    assert!(!thief.saw_credentials(), "{:?}", thief.heads());
}

/// A download goes on where an earlier one has ended, also where that was of another place.
#[tokio::test]
async fn what_a_broken_mirror_has_left_of_a_layer_does_not_spoil_it() {
    let ((Some(origin), Some(broken)), true) = ((Server::start(false), Server::start(false)), root()) else {
        return;
    };
    let layer = Layer::new().file("from", "the same").finish();
    push(&origin, "the same").await;
    push(&broken, "the same").await;
    let descriptor = broken.push_blob(layer).await;
    std::fs::write(broken.blob_file(&descriptor), "nonsense").expect("writes");
    let name = reference(origin.address, ":1");
    let mirrors = vec![mirror(&origin.address.to_string(), broken.address)];
    let given = pull(mirrors, &name, Auth::Anonymous).await;
    assert_eq!(given.expect("the registry has it"), "the same");
}
