//! Templates of workloads through kubectl: their fields on the way in and out, and gates that are turned off and on.
//!
//! One object of each kind with a template lives through all servers of a test, which share their data: gates on, stop
//! signals off in both profiles, all gates off, gates on again.

use http::Method;
use pulselet_apiserver::Config;
use pulselet_model::{Gate, GateSet, Profile};
use pulselet_schema::protobuf;
use pulselet_store::EtcdConfig;
use pulselet_testing::etcd::EtcdCluster;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Client, Credential, collect};
use crate::harness::{Answer, TestServer};

/// A kind with a template, and where its objects are.
struct Kind {
    name: &'static str,
    api_version: &'static str,
    resource: &'static str,
    /// Where the template is, below `spec` or in the object itself.
    template: &'static str,
}

const KINDS: [Kind; 8] = [
    kind("Deployment", "apps/v1", "deployments", "/spec/template"),
    kind("ReplicaSet", "apps/v1", "replicasets", "/spec/template"),
    kind("StatefulSet", "apps/v1", "statefulsets", "/spec/template"),
    kind("DaemonSet", "apps/v1", "daemonsets", "/spec/template"),
    kind("Job", "batch/v1", "jobs", "/spec/template"),
    kind(
        "CronJob",
        "batch/v1",
        "cronjobs",
        "/spec/jobTemplate/spec/template",
    ),
    kind(
        "ReplicationController",
        "v1",
        "replicationcontrollers",
        "/spec/template",
    ),
    kind("PodTemplate", "v1", "podtemplates", "/template"),
];

const fn kind(
    name: &'static str,
    api_version: &'static str,
    resource: &'static str,
    template: &'static str,
) -> Kind {
    Kind {
        name,
        api_version,
        resource,
        template,
    }
}

/// The fields that gates guard, in the container of [`template`].
const GATED: [(&str, Gate); 7] = [
    ("lifecycle.stopSignal", Gate::ContainerStopSignals),
    (
        "livenessProbe.initializationFailureThreshold",
        Gate::ProbeInitializationFailureThreshold,
    ),
    (
        "livenessProbe.terminationGracePeriodSeconds",
        Gate::ProbeTerminationGracePeriod,
    ),
    ("readinessProbe.initialDelayMilliseconds", Gate::SubSecondProbes),
    ("readinessProbe.periodMilliseconds", Gate::SubSecondProbes),
    ("readinessProbe.timeoutMilliseconds", Gate::SubSecondProbes),
    ("startupProbe", Gate::StartupProbeEnabled),
];

fn template(restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": restart, "os": {"name": "linux"}, "containers": [{
            "name": "app", "image": "app:1",
            "lifecycle": {"stopSignal": "SIGUSR1"},
            "livenessProbe": {"tcpSocket": {"port": 80}, "initializationFailureThreshold": 20,
                "terminationGracePeriodSeconds": 5},
            "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -500,
                "initialDelayMilliseconds": 250, "timeoutMilliseconds": 125},
            "startupProbe": {"tcpSocket": {"port": 80}},
        }]},
    })
}

impl Kind {
    fn object(&self, name: &str) -> Value {
        let spec = match self.name {
            "Job" => json!({"suspend": true, "template": template("Never")}),
            "CronJob" => {
                json!({"schedule": "@yearly", "jobTemplate": {"spec": {"template": template("Never")}}})
            }
            "ReplicationController" => json!({"replicas": 0, "template": template("Always")}),
            "DaemonSet" => {
                json!({"selector": {"matchLabels": {"app": "web"}}, "template": template("Always")})
            }
            _ => json!({"replicas": 0, "selector": {"matchLabels": {"app": "web"}},
                "template": template("Always")}),
        };
        let mut object = json!({"apiVersion": self.api_version, "kind": self.name,
            "metadata": {"name": name, "namespace": "default"}});
        match self.name {
            "PodTemplate" => object["template"] = template("Always"),
            "StatefulSet" => {
                object["spec"] = spec;
                object["spec"]["serviceName"] = json!("web");
            }
            _ => object["spec"] = spec,
        }
        object
    }

    fn collection(&self) -> String {
        let root = if self.api_version == "v1" { "/api" } else { "/apis" };
        format!("{root}/{}/namespaces/default/{}", self.api_version, self.resource)
    }

    /// What kubectl is told to act on.
    fn argument(&self) -> String {
        format!("{}/web", self.resource)
    }

    /// The path of a field of the container, as errors and warnings write it.
    fn path(&self, field: &str) -> String {
        let template = self.template.trim_start_matches('/').replace('/', ".");
        format!("{template}.spec.containers[0].{field}")
    }

    fn container<'a>(&self, object: &'a Value) -> &'a Value {
        let container = object.pointer(&format!("{}/spec/containers/0", self.template));
        container.unwrap_or_else(|| panic!("no container in {object}"))
    }

    /// A merge patch with a new container for the template.
    fn merge(&self, container: &Value) -> Value {
        let mut patch = json!({"spec": {"containers": [container]}});
        for name in self.template.trim_start_matches('/').rsplit('/') {
            patch = json!({ name: patch });
        }
        patch
    }

    /// The template of a Job is immutable.
    fn is_mutable(&self) -> bool {
        self.name != "Job"
    }

    fn has_status(&self) -> bool {
        self.name != "PodTemplate"
    }
}

fn field<'a>(container: &'a Value, path: &str) -> Option<&'a Value> {
    container.pointer(&format!("/{}", path.replace('.', "/")))
}

#[track_caller]
fn assert_shown(kind: &Kind, object: &Value) {
    for (path, _) in GATED {
        let sent = field(&template("Always")["spec"]["containers"][0], path).cloned();
        let shown = field(kind.container(object), path);
        let is_same = match path {
            // Defaults are added to a whole probe.
            "startupProbe" => shown.is_some(),
            _ => shown == sent.as_ref(),
        };
        assert!(is_same, "{} {path}: {object}", kind.name);
    }
}

#[track_caller]
fn assert_hidden(kind: &Kind, object: &Value, gates: GateSet) {
    for (path, gate) in GATED {
        let is_shown = field(kind.container(object), path).is_some();
        assert_eq!(is_shown, gates.enabled(gate), "{} {path}: {object}", kind.name);
    }
}

/// The data of one test, on which servers are started one after another.
struct World {
    directory: Option<TempDir>,
    etcd: Option<EtcdConfig>,
}

impl World {
    fn serve(&mut self, profile: Profile, gates: GateSet) -> Api {
        let directory = self.directory.take().expect("the last server was stopped");
        let etcd = self.etcd.clone();
        let server = TestServer::start_in(directory, |config: &mut Config| {
            config.etcd = etcd;
            config.profile = profile;
            config.gates = gates;
        });
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Api { server, runtime }
    }

    fn stop(&mut self, api: Api) {
        self.directory = Some(api.server.stop());
    }
}

struct Api {
    server: TestServer,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    #[track_caller]
    fn kubectl(&self, arguments: &[&str]) -> Answer {
        self.server.kubectl(arguments).expect("kubectl was found before")
    }

    #[track_caller]
    fn with_input(&self, input: &Value, arguments: &[&str]) -> Answer {
        let answer = self
            .server
            .kubectl_with(&self.server.kubeconfig, arguments, &input.to_string());
        answer.expect("kubectl was found before")
    }

    fn patch(&self, kind: &Kind, way: &str, patch: &Value, more: &[&str]) -> Answer {
        let (of, way, patch) = (kind.argument(), format!("--type={way}"), patch.to_string());
        self.kubectl(&[&["patch", &of, &way, "-p", &patch], more].concat())
    }

    fn raw(&self, path: &str) -> Value {
        self.runtime.block_on(async {
            let (code, object) = Client::admin(&self.server).await.get(path).await;
            assert_eq!(code, 200, "{object}");
            object
        })
    }

    fn web(&self, kind: &Kind) -> Value {
        self.raw(&format!("{}/web", kind.collection()))
    }

    /// All objects `web`, in the order of [`KINDS`].
    fn all(&self) -> Vec<Value> {
        KINDS.iter().map(|kind| self.web(kind)).collect()
    }
}

fn list(items: impl Iterator<Item = Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()})
}

fn generations(objects: &[Value]) -> Vec<Value> {
    let generation = |object: &Value| object["metadata"]["generation"].clone();
    objects.iter().map(generation).collect()
}

/// The whole way, on one store.
fn fields_and_gates_of_templates(etcd: Option<EtcdConfig>) {
    let mut world = World {
        directory: Some(TempDir::new().expect("a directory")),
        etcd,
    };
    let signals_off = GateSet::ALL.with(Gate::ContainerStopSignals, false);

    let api = world.serve(Profile::Pulselet, GateSet::ALL);
    if api.server.kubectl(&["version", "--client"]).is_none() {
        return;
    }
    fields_are_accepted_and_kept(&api);
    fields_pass_protobuf(&api);
    create_revision(&api);
    let mut before = generations(&api.all());
    world.stop(api);

    let api = world.serve(Profile::Pulselet, signals_off);
    assert_eq!(generations(&api.all()), before, "a gate changes no generation");
    objects_with_signals_stay_usable(&api);
    new_signals_are_rejected(&api);
    before = generations(&api.all());
    world.stop(api);

    let api = world.serve(Profile::Kubernetes, signals_off);
    new_signals_are_dropped(&api);
    world.stop(api);

    let api = world.serve(Profile::Pulselet, GateSet::NONE);
    assert_eq!(generations(&api.all()), before, "gates change no generation");
    fields_are_hidden(&api);
    unchanged_values_draw_no_warning(&api);
    new_fields_are_dropped(&api);
    // `kubectl replace` writes an annotation, which counts as a change of a Deployment.
    before = generations(&api.all());
    world.stop(api);

    let api = world.serve(Profile::Pulselet, GateSet::ALL);
    let objects = api.all();
    assert_eq!(generations(&objects), before, "gates change no generation");
    for (kind, object) in KINDS.iter().zip(&objects) {
        assert_shown(kind, object);
    }
    assert_eq!(revision_signal(&api), "SIGUSR1");
}

#[test]
fn fields_and_gates_of_templates_on_sqlite() {
    fields_and_gates_of_templates(None);
}

#[test]
fn fields_and_gates_of_templates_on_etcd() {
    let Some(cluster) = EtcdCluster::start(1) else {
        return;
    };
    fields_and_gates_of_templates(Some(cluster.url().parse().expect("members")));
}

/// Strict apply, server-side apply and every kind of patch, and what is explained.
fn fields_are_accepted_and_kept(api: &Api) {
    let objects = list(KINDS.iter().map(|kind| kind.object("web")));
    api.with_input(&objects, &["apply", "--validate=strict", "-f", "-"])
        .success();
    for kind in &KINDS {
        let shown = api.kubectl(&["get", &kind.argument(), "-o", "json"]).success();
        assert_shown(kind, &serde_json::from_str(&shown).expect("JSON"));
        let container = kind.template.trim_start_matches('/').replace('/', ".");
        let probe = format!("{}.{container}.spec.containers.readinessProbe", kind.resource);
        let text = api.kubectl(&["explain", &probe]).success();
        for field in [
            "periodMilliseconds",
            "initialDelayMilliseconds",
            "timeoutMilliseconds",
            "initializationFailureThreshold",
        ] {
            assert!(text.contains(field), "{probe}: {text}");
        }
    }
    // The same fields under another manager.
    let server_side = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    api.with_input(&objects, &server_side).success();
    for kind in &KINDS {
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        api.patch(kind, "merge", &label, &[]).success();
        if kind.is_mutable() {
            let image = json!({"name": "app", "image": "app:2"});
            api.patch(kind, "strategic", &kind.merge(&image), &[]).success();
            let at = format!("{}/spec/containers/0/readinessProbe/", kind.template);
            let of = |name: &str, value: i64| json!([{"op": "replace", "path": format!("{at}{name}"), "value": value}]);
            api.patch(kind, "json", &of("periodMilliseconds", -400), &[])
                .success();
            let changed = api.web(kind);
            assert_eq!(
                kind.container(&changed)["readinessProbe"]["periodMilliseconds"],
                -400
            );
            api.patch(kind, "json", &of("periodMilliseconds", -500), &[])
                .success();
        }
        let object = api.web(kind);
        assert_shown(kind, &object);
        assert_eq!(object["metadata"]["labels"]["a"], "b", "{object}");
    }
}

/// What is read as protobuf has the fields, and so has what is written as protobuf.
fn fields_pass_protobuf(api: &Api) {
    api.runtime.block_on(async {
        let mut client = Client::admin(&api.server).await;
        for kind in &KINDS {
            client.accept = protobuf::MEDIA_TYPE;
            let path = format!("{}/web", kind.collection());
            let (_, bytes) = collect(client.send(Method::GET, &path, "", "").await).await;
            let mut object = protobuf::decode(&bytes).expect("an object in protobuf");
            assert_shown(kind, &object);
            object["metadata"]["labels"]["a"] = json!("c");
            let bytes = protobuf::encode(&object).expect("a kind of protobuf");
            let answer = client.send(Method::PUT, &path, protobuf::MEDIA_TYPE, bytes).await;
            let (code, bytes) = collect(answer).await;
            assert_eq!(code, 200, "{}", String::from_utf8_lossy(&bytes));
            client.accept = "";
            let (_, object) = client.get(&path).await;
            assert_shown(kind, &object);
            assert_eq!(object["metadata"]["labels"]["a"], "c", "{object}");
        }
    });
}

const REVISION: &str = "/apis/apps/v1/namespaces/default/controllerrevisions/web-1";

fn create_revision(api: &Api) {
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"name": "web-1", "namespace": "default"}, "revision": 1,
        "data": {"spec": {"template": template("Always")}}});
    api.with_input(&revision, &["create", "-f", "-"]).success();
    assert_eq!(revision_signal(api), "SIGUSR1");
}

/// The stop signal in the data of the revision, or null.
fn revision_signal(api: &Api) -> Value {
    let revision = api.raw(REVISION);
    revision["data"]["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["stopSignal"].clone()
}

/// With their gate off, stop signals that are stored are in the way of no write.
fn objects_with_signals_stay_usable(api: &Api) {
    for kind in &KINDS {
        let web = kind.argument();
        api.kubectl(&["label", "--overwrite", &web, "a=d"]).success();
        api.kubectl(&["annotate", &web, "deployment.kubernetes.io/revision=1"])
            .success();
        let finalizer = json!({"metadata": {"finalizers": ["example.com/a"]}});
        api.patch(kind, "merge", &finalizer, &[]).success();
        let none = json!({"metadata": {"finalizers": null}});
        api.patch(kind, "merge", &none, &[]).success();
        if kind.has_status() {
            let status = match kind.name {
                "Job" => json!({"status": {"ready": 0}}),
                "CronJob" => json!({"status": {"lastScheduleTime": "2030-01-01T00:00:00Z"}}),
                "DaemonSet" => json!({"status": {"observedGeneration": 1, "numberReady": 0}}),
                _ => json!({"status": {"observedGeneration": 1, "replicas": 0}}),
            };
            api.patch(kind, "merge", &status, &["--subresource=status"])
                .success();
        }
        if matches!(
            kind.name,
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "CronJob" | "ReplicationController"
        ) {
            api.kubectl(&["set", "image", &web, "app=app:3"]).success();
        } else if kind.is_mutable() {
            let image = json!({"name": "app", "image": "app:3"});
            api.patch(kind, "strategic", &kind.merge(&image), &[]).success();
        }
        if matches!(kind.name, "Deployment" | "StatefulSet" | "DaemonSet") {
            api.kubectl(&["rollout", "restart", &web]).success();
        }
        let shown = api.web(kind);
        assert_hidden(kind, &shown, GateSet::ALL.with(Gate::ContainerStopSignals, false));
        let image = if kind.is_mutable() { "app:3" } else { "app:1" };
        assert_eq!(kind.container(&shown)["image"], image, "{shown}");
    }
    assert_eq!(revision_signal(api), Value::Null);
}

fn new_signals_are_rejected(api: &Api) {
    for kind in &KINDS {
        let forbidden = |answer: Answer| {
            let error = answer.failure();
            let path = kind.path("lifecycle.stopSignal");
            let says = format!(
                "{path}: Forbidden: may not be set while the feature gate ContainerStopSignals is off"
            );
            assert!(error.contains(&says), "{error}");
        };
        forbidden(api.with_input(&kind.object("new"), &["create", "-f", "-"]));
        let signal = json!({"name": "app", "lifecycle": {"stopSignal": "SIGUSR2"}});
        forbidden(api.patch(kind, "strategic", &kind.merge(&signal), &[]));
    }
    let code = api.runtime.block_on(async {
        let mut client = Client::admin(&api.server).await;
        client
            .post(&KINDS[0].collection(), &KINDS[0].object("new"))
            .await
            .0
    });
    assert_eq!(code, 422);
}

/// In profile `kubernetes`, whose server drops the field.
fn new_signals_are_dropped(api: &Api) {
    for kind in &KINDS {
        let mut object = kind.object("new");
        let containers = object.pointer_mut(&format!("{}/spec/containers", kind.template));
        *containers.expect("containers") =
            json!([{"name": "app", "image": "app:1", "lifecycle": {"stopSignal": "SIGUSR1"}}]);
        let created = api.with_input(&object, &["create", "--dry-run=server", "-o", "json", "-f", "-"]);
        let shown: Value = serde_json::from_str(&created.success()).expect("JSON");
        assert!(kind.container(&shown).get("lifecycle").is_none(), "{shown}");
        api.kubectl(&["label", "--overwrite", &kind.argument(), "a=e"])
            .success();
    }
}

/// Reads, watches and revisions without the fields, and updates that lack them.
fn fields_are_hidden(api: &Api) {
    assert_eq!(revision_signal(api), Value::Null);
    for kind in &KINDS {
        let shown = api.web(kind);
        assert_hidden(kind, &shown, GateSet::NONE);
        let event = api.runtime.block_on(async {
            let kubeconfig = Credential::Kubeconfig(api.server.kubeconfig.clone());
            let client = Client::connect(&api.server, kubeconfig).await;
            let path = format!("{}?watch=true&timeoutSeconds=20", kind.collection());
            client.watch(&path).await.next().await.expect("an event")
        });
        assert_hidden(kind, &event["object"], GateSet::NONE);
        // The store keeps what the author of this could not see.
        let mut new = shown;
        new["metadata"]["labels"]["a"] = json!("f");
        let replaced = api.with_input(&new, &["replace", "-f", "-"]);
        assert!(!replaced.stderr.contains("dropped"), "{}", replaced.stderr);
        replaced.success();
    }
}

/// Some of the stored values sent again: nothing is lost.
fn unchanged_values_draw_no_warning(api: &Api) {
    for kind in &KINDS {
        let container = json!({"name": "app", "lifecycle": {"stopSignal": "SIGUSR1"},
            "readinessProbe": {"periodMilliseconds": -500}});
        let answer = api.patch(kind, "strategic", &kind.merge(&container), &[]);
        assert!(!answer.stderr.contains("dropped"), "{}", answer.stderr);
        answer.success();
        if kind.is_mutable() {
            // Of two fields, only the one with another value.
            let container = json!({"name": "app", "livenessProbe": {"initializationFailureThreshold": 20},
                "readinessProbe": {"periodMilliseconds": -300}});
            let answer = api.patch(kind, "strategic", &kind.merge(&container), &[]);
            assert_eq!(answer.stderr.matches("dropped").count(), 1, "{}", answer.stderr);
            let path = kind.path("readinessProbe.periodMilliseconds");
            assert!(answer.stderr.contains(&path), "{}", answer.stderr);
            answer.success();
        }
    }
}

/// A warning for each field, with its whole path.
fn new_fields_are_dropped(api: &Api) {
    for kind in &KINDS {
        let mut object = kind.object("new");
        let lifecycle = object.pointer_mut(&format!("{}/spec/containers/0/lifecycle", kind.template));
        // A stop signal would be rejected.
        *lifecycle.expect("a lifecycle") = json!({});
        let created = api.with_input(&object, &["create", "-f", "-"]);
        for (field, gate) in &GATED[1..] {
            let path = kind.path(field);
            let says = format!("Warning: {path}: dropped because the feature gate {gate} is off");
            assert!(created.stderr.contains(&says), "{says}: {}", created.stderr);
        }
        assert_eq!(
            created.stderr.matches("dropped").count(),
            GATED.len() - 1,
            "{}",
            created.stderr
        );
        created.success();
        assert_hidden(
            kind,
            &api.raw(&format!("{}/new", kind.collection())),
            GateSet::NONE,
        );
    }
}
