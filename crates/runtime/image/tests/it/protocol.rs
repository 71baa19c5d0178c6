//! What registries can do wrong, and the ways of asking for tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pulselet_image::{Auth, Digest, DownloadError, Image, PullError, RegistryError};

use crate::builder::{Documents, Fixture, root};
use crate::registry::{Script, answer, client, reference};

async fn pull(script: &Script, auth: Auth) -> Result<Image, PullError> {
    let fixture = Fixture::new();
    let name = reference(script.address, ":1");
    let result = fixture.store.pull(&name, auth, Arc::new(|_| {})).await;
    assert_eq!(fixture.store.list().unwrap().len(), usize::from(result.is_ok()));
    result
}

#[tokio::test]
async fn a_token_is_fetched_where_the_registry_says() {
    if !root() {
        return;
    }
    // The server learns its own address only when it runs; a redirect takes the token service there.
    let documents = Documents::new();
    let tokens = Script::start(|head| {
        let scoped = head.contains("scope=repository%3Atest%3Apull") && head.contains("service=reg");
        // The user `u` with the password `p`.
        let known =
            head.to_ascii_lowercase().contains("authorization: basic dtpw") || head.contains("Basic dTpw");
        match (scoped, known) {
            (true, true) => answer("200 OK", "", br#"{"token": "good"}"#),
            _ => answer(
                "401 Unauthorized",
                "",
                br#"{"errors":[{"message":"who are you"}]}"#,
            ),
        }
    })
    .await;
    let realm = format!("http://{}/token", tokens.address);
    let registry = Script::start(move |head| {
        if head.contains("Bearer good") {
            return documents.find(head);
        }
        let header = format!("www-authenticate: Bearer realm=\"{realm}\",service=\"reg\"\r\n");
        answer("401 Unauthorized", &header, b"")
    })
    .await;
    let basic = Auth::Basic {
        username: "u".to_owned(),
        password: "p".to_owned(),
    };
    pull(&registry, basic).await.unwrap();
    pull(&registry, Auth::RegistryToken("good".to_owned()))
        .await
        .unwrap();
    let error = pull(&registry, Auth::Anonymous).await.unwrap_err();
    assert!(
        error.is_denied() && error.to_string().contains("who are you"),
        "{error}"
    );
    let error = pull(&registry, Auth::RegistryToken("bad".to_owned()))
        .await
        .unwrap_err();
    assert!(error.is_denied(), "{error}");
}

#[tokio::test]
async fn a_registry_that_is_not_well_is_asked_again() {
    if !root() {
        return;
    }
    let documents = Documents::new();
    let requests = AtomicUsize::new(0);
    let registry = Script::start(move |head| {
        // Every other request fails in its own way.
        match requests.fetch_add(1, Ordering::Relaxed) {
            0 => answer("503 Service Unavailable", "", b""),
            2 => Vec::new(),
            4 => answer("429 Too Many Requests", "", b""),
            _ => documents.find(head),
        }
    })
    .await;
    pull(&registry, Auth::Anonymous).await.unwrap();
}

#[tokio::test]
async fn answers_are_bounded() {
    let registry = Script::start(|_| answer("200 OK", "", &vec![b' '; 5 << 20])).await;
    let error = pull(&registry, Auth::Anonymous).await.unwrap_err();
    assert!(
        matches!(error, PullError::Registry(RegistryError::TooLarge { .. })),
        "{error}"
    );

    let registry = Script::start(|_| answer("400 Bad Request", "", &vec![b'x'; 1 << 20])).await;
    let error = pull(&registry, Auth::Anonymous).await.unwrap_err();
    assert!(error.to_string().len() < 1000, "{error}");

    let documents = Documents::new();
    let registry = Script::start(move |head| {
        if head.contains("/blobs/") {
            answer("200 OK", "", &vec![b' '; 1 << 20])
        } else {
            documents.find(head)
        }
    })
    .await;
    let error = pull(&registry, Auth::Anonymous).await.unwrap_err();
    assert!(
        matches!(error, PullError::Download(DownloadError::TooLong { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn nonsense_is_an_error() {
    for body in [
        "",
        "null",
        "{}",
        "<html>",
        r#"{"manifests":[]}"#,
        r#"{"config":{"digest":"sha256:zz","size":1}}"#,
    ] {
        let registry = Script::start(move |_| answer("200 OK", "", body.as_bytes())).await;
        let error = pull(&registry, Auth::Anonymous).await.unwrap_err();
        assert!(
            matches!(error, PullError::Document(_) | PullError::NoPlatform { .. }),
            "{body}: {error}"
        );
    }
    let registry =
        Script::start(|_| answer("401 Unauthorized", "www-authenticate: Bearer nonsense\r\n", b"")).await;
    let error = pull(&registry, Auth::Anonymous).await.unwrap_err();
    assert!(
        matches!(error, PullError::Registry(RegistryError::Challenge { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn a_registry_without_ranges_is_read_from_the_start() {
    if !root() {
        return;
    }
    let documents = Documents::new();
    let layer = Digest::of(&documents.layer).to_string();
    let tries = AtomicUsize::new(0);
    let registry = Script::start(move |head| {
        let mut whole = documents.find(head);
        if head.contains(&layer) && tries.fetch_add(1, Ordering::Relaxed) == 0 {
            whole.truncate(whole.len() / 2);
        }
        whole
    })
    .await;
    pull(&registry, Auth::Anonymous).await.unwrap();
}

#[tokio::test]
async fn nobody_there_is_said_so() {
    let _ = client();
    let gone = Script::start(|_| Vec::new()).await;
    let address = gone.address;
    drop(gone);
    let fixture = Fixture::new();
    let result = fixture
        .store
        .pull(&reference(address, ":1"), Auth::Anonymous, Arc::new(|_| {}))
        .await;
    let error = result.unwrap_err();
    assert!(
        matches!(error, PullError::Registry(RegistryError::Send { .. })),
        "{error}"
    );
}
