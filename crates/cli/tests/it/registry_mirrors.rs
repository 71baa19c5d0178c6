//! `registryMirrors` and `--registry-mirror`, with pulls from registries on this machine: a mirror answers and the registry does
//! not, a mirror fails and the registry answers, and credentials are seen by nobody but the registry.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pulselet_runtime::{RegistryCredentials, Runtime as _};
use pulselet_testing::image_archive::shell_documents;
use pulselet_testing::image_registry::{Access, ImageRegistry};
use pulselet_testing::{is_root, requires};
use serde_json::{Value, json};

use crate::cri::CriProcess;
use crate::e2e::world::{Runtime, World};

/// A registry whose name leads nowhere.
const NOWHERE: &str = "registry.invalid";
const USER: &str = "robot";
const PASSWORD: &str = "hunter2";

/// A registry of a shell; `None` where containers cannot be run.
fn registry(access: Access) -> Option<ImageRegistry> {
    if !requires("root", is_root()) {
        return None;
    }
    Some(ImageRegistry::start(shell_documents()?, access))
}

/// Who knows the password may have the image.
fn with_password() -> Access {
    let word = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    Access::Only(format!("Basic {word}"))
}

fn mirror(registry: &str, mirror: &ImageRegistry) -> String {
    format!("{registry}=http://{}", mirror.address)
}

/// It was asked, and nobody told it a password.
fn saw_no_credentials(mirror: &ImageRegistry) {
    let heads = mirror.heads();
    assert!(!heads.is_empty(), "it was never asked");
    let leaked = heads.iter().any(|head| head.contains("authorization"));
    assert!(!leaked, "{heads:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cri_server_asks_mirrors_first() {
    let (Some(answers), Some(closed), Some(origin)) = (
        registry(Access::Everybody),
        registry(Access::Nobody),
        registry(with_password()),
    ) else {
        return;
    };
    let of_origin = origin.address.to_string();
    let mirrors = [mirror(NOWHERE, &answers), mirror(&of_origin, &closed)];
    let flags = mirrors
        .iter()
        .flat_map(|mirror| ["--registry-mirror", mirror.as_str()]);
    let server = CriProcess::start_with(&flags.collect::<Vec<_>>());
    let runtime = server.open().await;
    let credentials = RegistryCredentials::Basic {
        username: USER.to_owned(),
        password: PASSWORD.to_owned(),
    };
    for registry in [NOWHERE, &of_origin] {
        let name = format!("{registry}/shell:1");
        let pulled = runtime.pull_image(&name, Some(&credentials)).await;
        let pulled = pulled.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(pulled.tags.contains(&name), "{pulled:?}");
    }
    saw_no_credentials(&answers);
    saw_no_credentials(&closed);
    let unknown = format!("{of_origin}/other:1");
    let refused = runtime
        .pull_image(&unknown, None)
        .await
        .expect_err("needs a password");
    assert!(refused.to_string().contains(&of_origin), "{refused}");
}

/// A pod that runs to its end from an image of a registry, and the secret that it is pulled with.
fn pod(registry: &str) -> Value {
    let auths = json!({"auths": {registry: {"username": USER, "password": PASSWORD}}});
    let container = json!({
        "name": "app", "image": format!("{registry}/shell:1"), "imagePullPolicy": "Always",
        "command": ["sh", "-c", "exit 0"],
    });
    let spec = json!({
        "containers": [container], "restartPolicy": "Never", "imagePullSecrets": [{"name": "registry"}],
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry"},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": auths.to_string()}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec},
    ]})
}

#[test]
fn a_node_asks_mirrors_first() {
    let (Some(answers), Some(closed), Some(origin)) = (
        registry(Access::Everybody),
        registry(Access::Nobody),
        registry(with_password()),
    ) else {
        return;
    };
    let world = World::new(Runtime::Oci);
    let of_origin = origin.address.to_string();
    let mirrors = [mirror(NOWHERE, &answers), mirror(&of_origin, &closed)];
    let config = world.config(&json!({"registryMirrors": mirrors}).to_string());
    for registry in [NOWHERE, &of_origin] {
        let file = world.path("web.json");
        std::fs::write(&file, pod(registry).to_string()).expect("is written");
        let ended = world.run_files(&[file], &["--config", &config]).finish();
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.transcript(), ended.stderr);
    }
    saw_no_credentials(&answers);
    saw_no_credentials(&closed);
    let told = origin
        .heads()
        .iter()
        .filter(|head| head.contains("authorization"))
        .count();
    assert!(told > 0, "the registry itself was told who asks");
}
