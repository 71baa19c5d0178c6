//! Services of `serve`, as pods use them.

use pulselet_testing::containerd;
use pulselet_testing::image_archive::busybox;
use serde_json::{Value, json};

use super::cluster::{Cluster, kubectl_program, pod};

/// A cluster whose containers have the host's programs, on their own network.
fn start() -> Option<Cluster> {
    busybox()?;
    Cluster::serve_containers(&containerd::archive(containerd::IMAGE, None))
}

/// A pod with the host's programs.
fn container(name: &str, fields: &Value) -> Value {
    let mut pod = pod(name, fields);
    pod["spec"]["volumes"] = json!([{"name": "usr", "hostPath": {"path": "/usr"}}]);
    let app = &mut pod["spec"]["containers"][0];
    app["image"] = json!(containerd::IMAGE);
    app["imagePullPolicy"] = json!("Never");
    app["volumeMounts"] = json!([{"name": "usr", "mountPath": "/usr", "readOnly": true}]);
    pod
}

/// A web server that answers with its own name, and is ready while there is a file.
fn web(name: &str) -> Value {
    let script = format!(
        "mkdir /www; echo {name} > /www/index.html; touch /ready; exec /busybox httpd -f -p 8080 -h /www"
    );
    let mut web = container(
        name,
        &json!({
            "command": ["sh", "-c", script],
            "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"exec": {"command": ["test", "-e", "/ready"]}, "periodSeconds": 1, "failureThreshold": 1},
        }),
    );
    web["metadata"]["labels"] = json!({"app": "web"});
    web
}

fn create(cluster: &Cluster, object: &Value) {
    cluster
        .try_kubectl(&["apply", "-f", "-"], &object.to_string())
        .unwrap_or_else(|error| panic!("kubectl apply: {error}"));
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// The different answers that a pod gets when it asks often, or why it gets none.
fn answers(cluster: &Cluster, from: &str, url: &str) -> Result<Vec<String>, String> {
    let script = format!(
        "import urllib.request as web\n\
         for answer in sorted({{web.urlopen('{url}', timeout=5).read().decode().strip() for _ in range(24)}}): print(answer)"
    );
    let text = cluster.try_kubectl(&["exec", from, "--", "python3", "-c", &script], "")?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn until_answers(cluster: &Cluster, url: &str, wanted: &[&str]) {
    cluster.until(&format!("answers {wanted:?} from {url}"), || {
        let seen = answers(cluster, "client", url).ok()?;
        (seen == wanted).then_some(())
    });
}

#[test]
fn pods_reach_the_ready_pods_of_a_service() {
    let Some(cluster) = start() else {
        return;
    };
    cluster.until_node_ready();
    create(
        &cluster,
        &service(
            "web",
            &json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}),
        ),
    );
    for pod in [web("one"), web("two"), container("client", &json!({}))] {
        cluster.apply(&pod);
    }
    for name in ["one", "two", "client"] {
        cluster.until_ready(name);
    }
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let url = format!("http://{address}/");
    until_answers(&cluster, &url, &["one", "two"]);
    let endpoints = cluster.kubectl(&["get", "endpoints", "web"]);
    assert_eq!(endpoints.matches(":8080").count(), 2, "{endpoints}");
    cluster.kubectl(&["exec", "one", "--", "rm", "/ready"]);
    until_answers(&cluster, &url, &["two"]);
    let itself = answers(&cluster, "two", &url).expect("a pod reaches itself");
    assert_eq!(itself, ["two"]);
    cluster.kubectl(&["delete", "pod", "two", "--timeout=120s"]);
    cluster.until("refusal", || {
        let error = answers(&cluster, "client", &url).err()?;
        error.contains("refused").then_some(())
    });
    cluster.kubectl(&["exec", "one", "--", "touch", "/ready"]);
    until_answers(&cluster, &url, &["one"]);
    // By the service's name, and one pod by its own.
    for url in [
        "http://web/",
        "http://web.default/",
        "http://web.default.svc.cluster.local/",
        "http://one:8080/",
    ] {
        assert_eq!(
            answers(&cluster, "client", url).as_deref(),
            Ok(&["one".to_owned()][..]),
            "{url}"
        );
    }
    let resolver = cluster.kubectl(&["exec", "client", "--", "cat", "/etc/resolv.conf"]);
    for words in [
        "search default.svc.cluster.local svc.cluster.local cluster.local",
        "options ndots:5",
    ] {
        assert!(resolver.contains(words), "{resolver}");
    }
    let unknown = answers(&cluster, "client", "http://nobody/").expect_err("there is no such name");
    assert!(unknown.contains("Name or service not known"), "{unknown}");
    // A headless service has no address: its name leads to the pods.
    create(
        &cluster,
        &service(
            "direct",
            &json!({"clusterIP": "None", "selector": {"app": "web"}}),
        ),
    );
    until_answers(&cluster, "http://direct:8080/", &["one"]);
    // What nobody does is said to whoever asks for it.
    let spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    let file = cluster.path("balanced.json");
    std::fs::write(&file, service("balanced", &spec).to_string()).expect("writes");
    let kubectl = cluster
        .command_of(&kubectl_program())
        .args(["create", "-f"])
        .arg(&file)
        .output()
        .expect("kubectl runs");
    let said = String::from_utf8_lossy(&kubectl.stderr);
    assert!(said.contains("there is no load balancer here"), "{said}");
    assert!(!said.contains("nobody acts"), "{said}");
}
