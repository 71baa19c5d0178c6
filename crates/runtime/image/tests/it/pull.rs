//! Pulling from a real registry, through connections that break.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pulselet_image::{
    Auth, DownloadError, Image, LayerStep, Progress, Prune, PullError, PullEvent, Reference,
};
use serde_json::json;

use crate::builder::{Fixture, Layer, config, gzip, root, zstd};
use crate::registry::{Fault, Proxy, Server, reference};

/// Of the large layer.
const LARGE_BYTES: usize = 2 << 20;
/// More than a try must bring not to count as failed.
const CUT_BYTES: usize = 400 << 10;

fn silent() -> Progress {
    Arc::new(|_| {})
}

async fn pull(fixture: &Fixture, reference: &Reference) -> Result<Image, PullError> {
    fixture.store.pull(reference, Auth::Anonymous, silent()).await
}

/// Text without a pattern.
fn noise(bytes: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b' ' + u8::try_from(state % 90).unwrap())
    };
    (0..bytes).map(|_| next()).collect()
}

/// An image with a layer that is large enough to be cut.
async fn push_large(server: &Server) {
    let layers = [
        Layer::new().file("small", "small").finish(),
        Layer::new().file("large", &noise(LARGE_BYTES)).finish(),
    ];
    let config = config(&layers, &json!({}));
    server.push_image("1", &config, layers.to_vec()).await;
}

fn assert_large(image: &Image) {
    assert_eq!(
        fs::read_to_string(image.layers[1].join("large")).unwrap(),
        noise(LARGE_BYTES)
    );
}

#[tokio::test]
async fn an_image_is_pulled_once() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    let fixture = Fixture::new();
    let layers = [
        Layer::new().file("a", "1").finish(),
        Layer::new().file("b", "2").finish(),
        Layer::new().file("b", "2").finish(),
    ];
    let packed = vec![gzip(&layers[0]), zstd(&layers[1]), zstd(&layers[2])];
    let manifest = server
        .push_image("1", &config(&layers, &json!({"StopSignal": "9"})), packed)
        .await;
    let tagged = reference(server.address, ":1");
    let image = pull(&fixture, &tagged).await.unwrap();
    assert_eq!(image.references, std::slice::from_ref(&tagged));
    assert_eq!(image.config.stop_signal.as_deref(), Some("9"));
    assert_eq!(image.layers.len(), 3);
    assert!(image.layers[2].join("b").exists());
    let digest = manifest["digest"].as_str().unwrap();
    let by_digest = format!("{}/test@{digest}", server.address);
    assert_eq!(fixture.store.resolve(&by_digest).unwrap(), Some(image.clone()));
    let partial = fixture.directory.path().join("images/partial");
    assert_eq!(fs::read_dir(partial).unwrap().count(), 0, "nothing is kept twice");

    let steps = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&steps);
    let progress: Progress = Arc::new(move |event| {
        if let PullEvent::Layer { step, .. } = event {
            told.lock().unwrap().push(step);
        }
    });
    let again = fixture
        .store
        .pull(&by_digest.parse().unwrap(), Auth::Anonymous, progress)
        .await
        .unwrap();
    assert_eq!(again, image);
    assert_eq!(
        *steps.lock().unwrap(),
        [LayerStep::Exists, LayerStep::Exists, LayerStep::Exists]
    );
}

#[tokio::test]
async fn a_cut_connection_goes_on_where_it_was() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    push_large(&server).await;
    let proxy = Proxy::start(server.address, Fault::Cut, 3, CUT_BYTES).await;
    let fixture = Fixture::new();
    let image = pull(&fixture, &reference(proxy.address, ":1")).await.unwrap();
    assert_large(&image);
    let ranges = proxy.ranges();
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    assert!(ranges.is_sorted() && ranges[0] > 0, "{ranges:?}");
    let passed = proxy.passed.load(Ordering::Relaxed);
    assert!(
        passed < LARGE_BYTES + CUT_BYTES,
        "{passed} bytes: nothing is sent twice"
    );
}

#[tokio::test]
async fn a_pull_that_was_given_up_leaves_nothing_visible_and_is_taken_up() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    push_large(&server).await;
    let fixture = Fixture::new();
    let proxy = Proxy::start(server.address, Fault::Stall, 1, 2 * CUT_BYTES).await;
    let name = reference(proxy.address, ":1");
    let (reached, mut half) = tokio::sync::mpsc::unbounded_channel();
    let progress: Progress = Arc::new(move |event| {
        if let PullEvent::Layer {
            step: LayerStep::Downloading { done, .. },
            ..
        } = event
            && done > CUT_BYTES as u64
        {
            let _ = reached.send(done);
        }
    });
    let store = fixture.store.clone();
    let given_up = {
        let name = name.clone();
        tokio::spawn(async move { store.pull(&name, Auth::Anonymous, progress).await })
    };
    half.recv().await.expect("the download gets that far");
    proxy.spoilt.notified().await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    assert_eq!(fixture.store.list().unwrap(), []);
    assert!(proxy.ranges().is_empty());
    let image = pull(&fixture, &name).await.unwrap();
    assert_large(&image);
    let ranges = proxy.ranges();
    assert_eq!(ranges.len(), 1);
    assert!(ranges[0] > CUT_BYTES as u64, "{ranges:?}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_and_pruning_removes_the_rest() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    push_large(&server).await;
    // Enough for the documents, never for the layer.
    let proxy = Proxy::start(server.address, Fault::Cut, usize::MAX, 64 << 10).await;
    let fixture = Fixture::new();
    let error = pull(&fixture, &reference(proxy.address, ":1")).await.unwrap_err();
    assert!(
        matches!(error, PullError::Download(DownloadError::Registry { .. })),
        "{error}"
    );
    assert_eq!(fixture.store.list().unwrap(), []);
    let partial = fixture.directory.path().join("images/partial");
    assert!(fs::read_dir(&partial).unwrap().count() > 0, "to go on with");
    fixture.store.prune(Prune::Untagged, &BTreeSet::new()).unwrap();
    assert_eq!(fs::read_dir(&partial).unwrap().count(), 0);
}

#[tokio::test]
async fn two_pulls_at_once_download_once() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    push_large(&server).await;
    let proxy = Proxy::start(server.address, Fault::Cut, 0, 0).await;
    let fixture = Fixture::new();
    let name = reference(proxy.address, ":1");
    let (first, second) = tokio::join!(pull(&fixture, &name), pull(&fixture, &name));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.id, second.id);
    assert_large(&first);
    assert!(
        proxy.blob_requests() <= 6,
        "twice at most, and never in each other's way"
    );
}

#[tokio::test]
async fn of_several_platforms_this_machines_is_taken() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    let layers = [Layer::new().file("a", "1").finish()];
    let ours = config(&layers, &json!({}));
    let mut foreign = ours.clone();
    foreign["architecture"] = json!("s390x");
    let (os, architecture) = (ours["os"].clone(), ours["architecture"].clone());
    let mut entry = server.push_image("ours", &ours, vec![gzip(&layers[0])]).await;
    entry["platform"] = json!({"os": os, "architecture": architecture});
    let mut other = server
        .push_image("foreign", &foreign, vec![gzip(&layers[0])])
        .await;
    other["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let index = server.push_index("both", vec![other.clone(), entry]).await;
    server.push_index("none", vec![other]).await;

    let fixture = Fixture::new();
    let image = pull(&fixture, &reference(server.address, ":both")).await.unwrap();
    assert_eq!(image.config.architecture, architecture.as_str().unwrap());
    assert_eq!(
        image.digests[0].digest().unwrap().to_string(),
        index["digest"].as_str().unwrap()
    );
    let error = pull(&fixture, &reference(server.address, ":none"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("linux/s390x"), "{error}");
    let error = pull(&fixture, &reference(server.address, ":foreign"))
        .await
        .unwrap_err();
    assert!(matches!(error, PullError::WrongPlatform { .. }), "{error}");
}

#[tokio::test]
async fn content_that_changed_in_the_registry_is_refused() {
    let Some(server) = Server::start(false).filter(|_| root()) else {
        return;
    };
    let layers = [Layer::new().file("a", "1").finish()];
    let packed = gzip(&layers[0]);
    let blob = server.push_blob(packed.clone()).await;
    server
        .push_image("1", &config(&layers, &json!({})), vec![packed.clone()])
        .await;
    let mut changed = packed;
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    fs::write(server.blob_file(&blob), changed).unwrap();
    let fixture = Fixture::new();
    let error = pull(&fixture, &reference(server.address, ":1"))
        .await
        .unwrap_err();
    assert!(
        matches!(error, PullError::Download(DownloadError::Corrupt { .. })),
        "{error}"
    );
    assert_eq!(fixture.store.list().unwrap(), []);
}

#[tokio::test]
async fn a_password_is_used_where_it_is_wanted() {
    let Some(server) = Server::start(true).filter(|_| root()) else {
        return;
    };
    let layers = [Layer::new().file("a", "1").finish()];
    server
        .push_image("1", &config(&layers, &json!({})), vec![gzip(&layers[0])])
        .await;
    let fixture = Fixture::new();
    let name = reference(server.address, ":1");
    let basic = |password: &str| Auth::Basic {
        username: "user".to_owned(),
        password: password.to_owned(),
    };
    for auth in [Auth::Anonymous, basic("wrong")] {
        let error = fixture.store.pull(&name, auth, silent()).await.unwrap_err();
        assert!(error.is_denied(), "{error}");
    }
    fixture
        .store
        .pull(&name, basic("secret"), silent())
        .await
        .unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let Some(server) = Server::start(false) else {
        return;
    };
    let fixture = Fixture::new();
    let error = pull(&fixture, &reference(server.address, ":never"))
        .await
        .unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert!(error.to_string().contains("no image test:never"), "{error}");
}
