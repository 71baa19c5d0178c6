//! What monitoring sees of the API: its gates, the requests it answered and the watches that are open.
//!
//! Names and labels are those of an upstream API server, as far as a label can have more than one value here. Labels never
//! come from what a client made up: a path that names no resource has empty ones.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use pulselet_model::{Gate, GateSet};

use crate::registry::resource::{ObjectPath, Subresource};
use crate::rest::query::Query;
use crate::rest::route::{Route, Verb};

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Seconds.
const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

type HistogramMaker = fn() -> Histogram;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabels {
    name: &'static str,
    stage: &'static str,
}

/// What was asked for, as far as it is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    code: u16,
}

impl RequestLabels {
    /// Those of a request; `None` as its route if its path leads nowhere.
    pub(crate) fn of<B>(request: &Request<B>, route: Option<&Route>) -> Self {
        match route {
            Some(Route::Proxy(proxied)) => Self {
                verb: "CONNECT",
                ..Self::of_objects(request.method(), &proxied.object, false)
            },
            Some(Route::Objects(path)) => {
                let query = Query::parse(request.uri().query().unwrap_or_default()).ok();
                let watch = query.and_then(|query| query.flag("watch").ok().flatten());
                Self::of_objects(request.method(), path, watch == Some(true))
            }
            Some(_) | None => Self {
                verb: method_name(request.method()),
                group: "",
                version: "",
                resource: "",
                subresource: "",
            },
        }
    }

    fn of_objects(method: &Method, path: &ObjectPath, watch: bool) -> Self {
        let verb = match (path.subresource, Verb::of(method, path, watch)) {
            (Some(Subresource::Exec | Subresource::Attach | Subresource::PortForward), _) => "CONNECT",
            (_, Ok(Verb::List)) => "LIST",
            (_, Ok(Verb::Watch)) => WATCH,
            (_, Ok(Verb::DeleteCollection)) => "DELETECOLLECTION",
            (_, Ok(Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete) | Err(_)) => {
                method_name(method)
            }
        };
        let group_version = path.endpoint.group_version;
        Self {
            verb,
            group: group_version.group(),
            version: group_version.version(),
            resource: path.endpoint.info().plural,
            subresource: path.subresource.map_or("", Subresource::name),
        }
    }

    /// Whether the answer is a stream, whose length says nothing about the server.
    fn is_long_running(self) -> bool {
        self.verb == WATCH || self.verb == "CONNECT"
    }
}

const WATCH: &str = "WATCH";

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// All metrics of an API server.
pub(crate) struct ApiMetrics {
    registry: Registry,
    requests: Family<AnswerLabels, Counter>,
    duration: Family<RequestLabels, Histogram, HistogramMaker>,
    long_running: Family<RequestLabels, Gauge>,
}

impl fmt::Debug for ApiMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiMetrics").finish_non_exhaustive()
    }
}

/// A stream that is counted as open as long as this lives.
#[derive(Debug)]
pub(crate) struct OpenStream(Gauge);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl ApiMetrics {
    pub(crate) fn new(gates: GateSet) -> Arc<Self> {
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            long_running: Family::default(),
        };
        let enabled: Family<GateLabels, Gauge> = Family::default();
        for gate in Gate::ALL {
            let labels = GateLabels {
                name: gate.name(),
                stage: gate.stage(),
            };
            enabled.get_or_create(&labels).set(i64::from(gates.enabled(gate)));
        }
        let registry = &mut metrics.registry;
        registry.register(
            "kubernetes_feature_enabled",
            "Whether a feature gate is on",
            enabled,
        );
        registry.register(
            "apiserver_request",
            "Requests that were answered, by what they asked for and the code of the answer",
            metrics.requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Between a request and its answer, streams left out",
            metrics.duration.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Watches that are open",
            metrics.long_running.clone(),
        );
        Arc::new(metrics)
    }

    pub(crate) fn answered(&self, request: RequestLabels, code: StatusCode, took: Duration) {
        let answer = AnswerLabels {
            verb: request.verb,
            group: request.group,
            version: request.version,
            resource: request.resource,
            subresource: request.subresource,
            code: code.as_u16(),
        };
        self.requests.get_or_create(&answer).inc();
        if !request.is_long_running() {
            self.duration.get_or_create(&request).observe(took.as_secs_f64());
        }
    }

    /// Counts a watch of these objects until what is returned is dropped.
    pub(crate) fn watch(&self, path: &ObjectPath) -> OpenStream {
        let labels = RequestLabels::of_objects(&Method::GET, path, true);
        let gauge = self.long_running.get_or_create(&labels).clone();
        gauge.inc();
        OpenStream(gauge)
    }

    /// The text of `/metrics`.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("writing to a string does not fail");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::route;

    fn labels(method: Method, uri: &str) -> RequestLabels {
        let request = Request::builder().method(method).uri(uri).body(());
        let request = request.expect("a request");
        let route = route::parse(request.uri().path());
        RequestLabels::of(&request, route.as_ref().ok())
    }

    #[test]
    fn names_and_labels_are_upstreams() {
        let metrics = ApiMetrics::new(GateSet::ALL.with(Gate::ContainerStopSignals, false));
        for (method, uri, code) in [
            (Method::GET, "/api/v1/namespaces/default/pods", 200),
            (Method::POST, "/api/v1/namespaces/default/pods", 422),
            (Method::GET, "/api/v1/pods?watch=true", 200),
            (Method::GET, "/made/up/by/somebody", 404),
        ] {
            let labels = labels(method, uri);
            let code = StatusCode::from_u16(code).expect("a code");
            metrics.answered(labels, code, Duration::from_millis(3));
        }
        let Ok(Route::Objects(path)) = route::parse("/api/v1/pods") else {
            panic!("pods are served");
        };
        let open = metrics.watch(&path);
        let text = metrics.text();
        for line in [
            r#"kubernetes_feature_enabled{name="ContainerStopSignals",stage="ALPHA"} 0"#,
            r#"kubernetes_feature_enabled{name="StartupProbeEnabled",stage=""} 1"#,
            r#"apiserver_request_total{verb="LIST",group="",version="v1",resource="pods",subresource="",code="200"} 1"#,
            r#"apiserver_request_total{verb="POST",group="",version="v1",resource="pods",subresource="",code="422"} 1"#,
            r#"apiserver_request_total{verb="GET",group="",version="",resource="",subresource="",code="404"} 1"#,
            r#"apiserver_longrunning_requests{verb="WATCH",group="",version="v1",resource="pods",subresource=""} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nnot in\n{text}");
        }
        assert!(!text.contains("made/up") && !text.contains(r#"duration_seconds_count{verb="WATCH""#));
        drop(open);
        assert!(metrics.text().contains(r#"resource="pods",subresource=""} 0"#));
    }

    /// What the files for Prometheus and Grafana ask of the API is there to be asked for.
    #[test]
    fn the_rules_and_the_dashboard_know_the_apis_metrics() {
        let metrics = ApiMetrics::new(GateSet::ALL);
        let labels = labels(Method::GET, "/api/v1/pods");
        metrics.answered(labels, StatusCode::OK, Duration::ZERO);
        let Ok(Route::Objects(path)) = route::parse("/api/v1/pods") else {
            panic!("pods are served");
        };
        let _open = metrics.watch(&path);
        let text = metrics.text();
        for file in ["prometheus-rules.yaml", "grafana-dashboard.json"] {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dist/");
            let used = std::fs::read_to_string(format!("{path}{file}")).expect("the file is there");
            let words = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("apiserver_")) {
                let is_there = |line: &str| line.split(['{', ' ']).next() == Some(name);
                assert!(
                    text.lines().any(is_there),
                    "{file} uses {name}, which is not exported"
                );
            }
        }
    }
}
