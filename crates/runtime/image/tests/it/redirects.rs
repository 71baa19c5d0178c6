//! Where credentials go when a registry or its token service sends us elsewhere.

use std::sync::Arc;

use pulselet_image::{Auth, PullError, RegistryError};

use crate::builder::{Documents, Fixture, root};
use crate::recorded::Recorded;
use crate::registry::{Script, answer, reference};

fn moved(status: &str, location: &str) -> Vec<u8> {
    answer(status, &format!("location: {location}\r\n"), b"")
}

fn challenge(realm: &str) -> Vec<u8> {
    let header = format!("www-authenticate: Bearer realm=\"{realm}\"\r\n");
    answer("401 Unauthorized", &header, b"")
}

fn basic() -> Auth {
    Auth::Basic {
        username: "u".to_owned(),
        password: "p".to_owned(),
    }
}

async fn pull(script: &Script, auth: Auth) -> Result<(), PullError> {
    let fixture = Fixture::new();
    let name = reference(script.address, ":1");
    let pulled = fixture.store.pull(&name, auth, Arc::new(|_| {})).await;
    pulled.map(drop)
}

#[tokio::test]
async fn a_challenge_of_another_host_is_not_answered() {
    for way in ["Basic", "Bearer"] {
        let thief = Recorded::start(move |head| {
            let here = head.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("host: ")
                    .map(str::to_owned)
            });
            let here = here.unwrap_or_default();
            match way {
                "Basic" => answer("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", b""),
                _ => challenge(&format!("http://{here}/token")),
            }
        })
        .await;
        let target = format!("http://{}/elsewhere", thief.script.address);
        let registry = Script::start(move |_| moved("307 Temporary Redirect", &target)).await;
        let error = pull(&registry, basic()).await.unwrap_err();
        assert!(error.is_denied(), "{error}");
        assert!(!thief.heads().is_empty(), "a redirect of a request is followed");
        assert!(!thief.saw_credentials(), "{way}: {:?}", thief.heads());
    }
}

#[tokio::test]
async fn a_token_request_is_not_taken_to_another_host() {
    for auth in [basic(), Auth::IdentityToken("secret".to_owned()), Auth::Anonymous] {
        let thief = Recorded::start(|_| answer("200 OK", "", br#"{"token": "good"}"#)).await;
        let target = format!("http://{}/token", thief.script.address);
        let tokens = Script::start(move |_| moved("307 Temporary Redirect", &target)).await;
        let realm = format!("http://{}/token", tokens.address);
        let registry = Script::start(move |_| challenge(&realm)).await;
        assert!(pull(&registry, auth.clone()).await.is_err());
        assert_eq!(thief.heads(), Vec::<String>::new(), "{auth:?}");
    }
}

#[tokio::test]
async fn an_identity_token_is_posted_once() {
    let tokens = Recorded::start(|_| moved("308 Permanent Redirect", "/again")).await;
    let realm = format!("http://{}/token", tokens.script.address);
    let registry = Script::start(move |_| challenge(&realm)).await;
    let error = pull(&registry, Auth::IdentityToken("secret".to_owned())).await;
    assert!(
        matches!(
            error,
            Err(PullError::Registry(RegistryError::TokenRedirect { .. }))
        ),
        "{error:?}"
    );
    assert_eq!(tokens.heads().len(), 1, "{:?}", tokens.heads());
}

#[tokio::test]
async fn a_token_service_elsewhere_needs_https() {
    let tokens = Recorded::start(|_| answer("200 OK", "", br#"{"token": "good"}"#)).await;
    // The same address under another name is another host.
    let realm = format!("http://localhost:{}/token", tokens.script.address.port());
    let registry = Script::start(move |_| challenge(&realm)).await;
    let error = pull(&registry, basic()).await;
    assert!(
        matches!(error, Err(PullError::Registry(RegistryError::Realm { .. }))),
        "{error:?}"
    );
    assert_eq!(tokens.heads(), Vec::<String>::new());
}

#[tokio::test]
async fn blobs_may_lie_elsewhere_but_credentials_stay() {
    if !root() {
        return;
    }
    let documents = Arc::new(Documents::new());
    let same = Arc::clone(&documents);
    let storage = Recorded::start(move |head| same.find(head)).await;
    let place = storage.script.address;
    let registry = Recorded::start(move |head| {
        if !head.contains("Basic dTpw") {
            return answer("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", b"");
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        if path.contains("/blobs/") {
            return moved("307 Temporary Redirect", &format!("http://{place}{path}"));
        }
        // Within the registry they go along.
        if path.starts_with("/v2/") {
            return moved("302 Found", &format!("/moved{path}"));
        }
        documents.find(head)
    })
    .await;
    pull(&registry.script, basic()).await.unwrap();
    assert!(!storage.heads().is_empty() && !storage.saw_credentials());
}

#[tokio::test]
async fn redirects_end() {
    let registry = Recorded::start(|_| moved("302 Found", "/v2/round")).await;
    let error = pull(&registry.script, Auth::Anonymous).await;
    assert!(
        matches!(
            error,
            Err(PullError::Registry(RegistryError::TooManyRedirects { .. }))
        ),
        "{error:?}"
    );
    assert!(registry.heads().len() < 10);
}
