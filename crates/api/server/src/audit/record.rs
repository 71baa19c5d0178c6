//! What is known of a request, and the line that is written about it.

use std::net::SocketAddr;
use std::time::Instant;

use http::{Method, Request, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::policy::{AuditLevel, AuditStage};
use crate::access::{Access, Attributes, Identity, ResourceAttributes};
use crate::registry::object;
use crate::registry::resource::{ObjectPath, Subresource};
use crate::rest::route::{self, Route, Verb};

/// How many bytes of an address are written. Longer ones say nothing more.
const MAX_URI_BYTES: usize = 4096;

/// What is known of a request before it is answered.
#[derive(Debug)]
pub(crate) struct AuditRecord {
    method: Method,
    uri: String,
    path: Option<ObjectPath>,
    verb: Option<Verb>,
    /// `None` if the caller could not prove who they claim to be.
    caller: Option<Identity>,
    source: SocketAddr,
    received: Timestamp,
    start: Instant,
    /// The same in all lines about this request.
    id: String,
    /// What is asked for, in the words of rules.
    attributes: Attributes,
    /// Whether its body is an object, and not a stream.
    has_object: bool,
}

/// A line about a request.
#[derive(Debug)]
pub(super) struct AuditLine {
    pub(super) level: AuditLevel,
    pub(super) stage: AuditStage,
    /// `None` before the answer, and if the client left before it.
    pub(super) code: Option<StatusCode>,
    /// Refusals of strangers that were not written since the last that was.
    pub(super) suppressed: u64,
    /// The client left before the answer.
    pub(super) is_abandoned: bool,
    pub(super) request: Option<Value>,
    pub(super) response: Option<Value>,
    /// Which bodies could not be shown.
    pub(super) left_out: Vec<&'static str>,
}

impl AuditLine {
    pub(super) const fn new(level: AuditLevel, stage: AuditStage, code: Option<StatusCode>) -> Self {
        Self {
            level,
            stage,
            code,
            suppressed: 0,
            is_abandoned: false,
            request: None,
            response: None,
            left_out: Vec::new(),
        }
    }
}

impl AuditRecord {
    pub(crate) fn new<B>(request: &Request<B>, caller: Option<&Identity>, source: SocketAddr) -> Self {
        let route = route::parse(request.uri().path());
        let has_object = matches!(route, Ok(Route::Objects(_) | Route::Review(_)));
        let asked = route.as_ref().ok().and_then(|route| match route {
            Route::Review(review) => Some(review.attributes()),
            Route::Usage(usage) => Some(Attributes::Resource(usage.attributes())),
            _ => None,
        });
        let path = match route {
            Ok(Route::Objects(path)) => Some(path),
            Ok(Route::Proxy(proxied)) => Some(proxied.object),
            Ok(_) | Err(_) => None,
        };
        let query = request.uri().query().unwrap_or_default();
        let watch = query
            .split('&')
            .any(|part| matches!(part, "watch=1" | "watch=true"));
        let verb = path
            .as_ref()
            .and_then(|path| Verb::of(request.method(), path, watch).ok());
        let mut uri = request
            .uri()
            .path_and_query()
            .map_or_else(String::new, ToString::to_string);
        if uri.len() > MAX_URI_BYTES {
            uri = uri.chars().take(MAX_URI_BYTES).collect();
        }
        let method = request.method().as_str().to_lowercase();
        let attributes = asked.unwrap_or_else(|| match (&path, verb) {
            (Some(path), Some(verb)) => Attributes::Resource(ResourceAttributes::of(Access {
                verb,
                path,
                selector: None,
            })),
            (Some(_) | None, _) => Attributes::Path {
                verb: method,
                path: request.uri().path().to_owned(),
            },
        });
        Self {
            method: request.method().clone(),
            uri,
            path,
            verb,
            caller: caller.cloned(),
            source,
            received: Timestamp::now(),
            start: Instant::now(),
            id: object::new_uid(),
            attributes,
            has_object,
        }
    }

    pub(super) fn mutates(&self) -> bool {
        self.verb.is_some_and(Verb::mutates)
    }

    pub(super) fn is_of_stranger(&self) -> bool {
        self.caller.as_ref().is_none_or(Identity::is_anonymous)
    }

    /// Whether what it sends and gets is a stream that may take long.
    pub(super) fn is_long(&self, code: StatusCode) -> bool {
        code == StatusCode::SWITCHING_PROTOCOLS || self.verb == Some(Verb::Watch)
    }

    /// Whether its body is an object, and not a stream.
    pub(super) const fn has_object(&self) -> bool {
        self.has_object
    }

    /// What is asked for, in the words of rules.
    pub(super) const fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Who proved to be there, whoever they act for.
    pub(super) fn caller(&self) -> Option<&Identity> {
        let caller = self.caller.as_ref()?;
        Some(caller.impersonator.as_deref().unwrap_or(caller))
    }

    pub(super) fn line(&self, line: AuditLine) -> String {
        let method = self.method.as_str().to_lowercase();
        let latency = self.start.elapsed();
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": line.level.name(),
            "auditID": self.id,
            "stage": line.stage.name(),
            "requestURI": self.uri,
            "verb": self.verb.map_or(method, |verb| verb.name().to_owned()),
            "user": self.user(),
            "sourceIPs": [self.source.ip().to_string()],
            "requestReceivedTimestamp": micros(self.received),
            "stageTimestamp": micros(Timestamp::now()),
            "annotations": {
                "apiserver.latency.k8s.io/total": format!("{:.3}ms", latency.as_secs_f64() * 1000.0),
            },
        });
        if let Some(code) = line.code {
            event["responseStatus"] = json!({"code": code.as_u16()});
        }
        let bodies = [("requestObject", line.request), ("responseObject", line.response)];
        for (field, body) in bodies {
            if let Some(body) = body {
                event[field] = body;
            }
        }
        if let Some(caller) = self
            .caller
            .as_ref()
            .filter(|caller| caller.impersonator.is_some())
        {
            event["impersonatedUser"] = caller.shown();
        }
        if let Some(path) = &self.path {
            event["objectRef"] = object_reference(path);
        }
        let annotations = &mut event["annotations"];
        if line.is_abandoned {
            annotations["pulselet/abandoned"] = json!("true");
        }
        if line.suppressed > 0 {
            annotations["pulselet/suppressed"] = json!(line.suppressed.to_string());
        }
        if !line.left_out.is_empty() {
            annotations["pulselet/left-out"] = json!(line.left_out.join(","));
        }
        event.to_string()
    }

    fn user(&self) -> Value {
        match &self.caller {
            Some(caller) => caller.impersonator.as_deref().unwrap_or(caller).shown(),
            None => json!({}),
        }
    }
}

/// A time with microseconds, as upstream's audit events have it.
fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

fn object_reference(path: &ObjectPath) -> Value {
    let version = path.endpoint.group_version;
    let mut reference = json!({
        "resource": path.endpoint.info().plural,
        "apiVersion": version.version(),
    });
    let parts = [
        (
            "apiGroup",
            Some(version.group()).filter(|group| !group.is_empty()),
        ),
        ("namespace", path.namespace.as_deref()),
        ("name", path.name.as_deref()),
        ("subresource", path.subresource.map(Subresource::name)),
    ];
    for (field, value) in parts {
        if let Some(value) = value {
            reference[field] = json!(value);
        }
    }
    reference
}
