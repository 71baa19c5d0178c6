//! The audit log: who changed what, and who was refused.
//!
//! One line of JSON for each request that changes something and for each that is refused, in the form of upstream's
//! audit events of level `Metadata`: neither what was sent nor what was answered is in it. A request waits for room in
//! the queue rather than going unrecorded. Strangers are the exception: they can be as many as they like and would
//! push everything else out of the log, so only some of their refusals are written, and the rest is counted.

mod file;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::{Method, Request, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::access::Identity;
use crate::registry::object;
use crate::registry::resource::{ObjectPath, Subresource};
use crate::rest::route::{self, Route, Verb};
use file::RotatingFile;

/// Lines that wait to be written.
const QUEUE: usize = 1024;
/// How many refusals of strangers are written in a second.
const STRANGERS_PER_SECOND: u32 = 10;
/// How many bytes of an address are written. Longer ones say nothing more.
const MAX_URI_BYTES: usize = 4096;

/// Writes the audit log. What is in the queue is written before this is gone.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// `None` only while this is dropped.
    lines: Option<mpsc::Sender<String>>,
    writer: Option<JoinHandle<()>>,
    strangers: Mutex<Allowance>,
}

/// What is left to strangers of the current second.
#[derive(Debug)]
struct Allowance {
    since: Instant,
    used: u32,
    /// Refusals that were not written since the last that was.
    suppressed: u64,
}

/// A request under way. If it is dropped before its answer, its client has left, and that is recorded: what it asked for
/// may have been done all the same.
#[derive(Debug)]
pub(crate) struct AuditedRequest {
    log: Arc<AuditLog>,
    record: Option<AuditRecord>,
}

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
}

impl AuditLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = RotatingFile::open(path, file::MAX_BYTES)?;
        let (lines, mut queue) = mpsc::channel::<String>(QUEUE);
        let writer = std::thread::Builder::new().name("audit-log".to_owned());
        let writer = writer.spawn(move || {
            while let Some(line) = queue.blocking_recv() {
                if let Err(error) = file.write_line(&line) {
                    tracing::error!(%error, line, "the audit log cannot be written");
                }
            }
        })?;
        Ok(Self {
            lines: Some(lines),
            writer: Some(writer),
            strangers: Mutex::new(Allowance {
                since: Instant::now(),
                used: 0,
                suppressed: 0,
            }),
        })
    }

    /// Begins to record a request.
    pub(crate) fn begin(self: &Arc<Self>, record: AuditRecord) -> AuditedRequest {
        AuditedRequest {
            log: Arc::clone(self),
            record: Some(record),
        }
    }

    async fn record(&self, record: AuditRecord, code: StatusCode) {
        let is_refused = matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let Some(lines) = self.lines.as_ref().filter(|_| is_refused || record.mutates()) else {
            return;
        };
        if !record.is_of_stranger() {
            // The writer ends after all senders only.
            let _ = lines.send(record.line(Some(code), 0)).await;
            return;
        }
        let suppressed = self.allow_stranger(Instant::now());
        if let Some(suppressed) = suppressed
            && lines.try_send(record.line(Some(code), suppressed)).is_err()
        {
            self.lock().suppressed += suppressed + 1;
        }
    }

    /// Records a change whose client has left. Nobody is there to wait for room in the queue.
    fn record_abandoned(&self, record: &AuditRecord) {
        if !record.mutates() || record.is_of_stranger() {
            return;
        }
        let line = record.line(None, 0);
        if let Some(lines) = &self.lines
            && let Err(error) = lines.try_send(line)
        {
            tracing::error!(line = error.into_inner(), "the audit log has no room for a line");
        }
    }

    /// How many refusals were left out before this one; `None` if this one is left out, too.
    fn allow_stranger(&self, now: Instant) -> Option<u64> {
        let mut allowance = self.lock();
        if now.duration_since(allowance.since) >= Duration::from_secs(1) {
            allowance.since = now;
            allowance.used = 0;
        }
        if allowance.used == STRANGERS_PER_SECOND {
            allowance.suppressed += 1;
            return None;
        }
        allowance.used += 1;
        Some(std::mem::take(&mut allowance.suppressed))
    }

    /// The counts are whole between any two statements, so a panic elsewhere does not spoil them.
    fn lock(&self) -> std::sync::MutexGuard<'_, Allowance> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has said so.
            let _ = writer.join();
        }
    }
}

impl AuditedRequest {
    /// The request has been answered.
    pub(crate) async fn answered(mut self, code: StatusCode) {
        if let Some(record) = self.record.take() {
            self.log.record(record, code).await;
        }
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            self.log.record_abandoned(&record);
        }
    }
}

impl AuditRecord {
    pub(crate) fn new<B>(request: &Request<B>, caller: Option<&Identity>, source: SocketAddr) -> Self {
        let path = match route::parse(request.uri().path()) {
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
        Self {
            method: request.method().clone(),
            uri,
            path,
            verb,
            caller: caller.cloned(),
            source,
            received: Timestamp::now(),
            start: Instant::now(),
        }
    }

    fn mutates(&self) -> bool {
        self.verb.is_some_and(Verb::mutates)
    }

    fn is_of_stranger(&self) -> bool {
        self.caller.as_ref().is_none_or(Identity::is_anonymous)
    }

    /// The line for an answer; `None` if the client left before it.
    fn line(&self, code: Option<StatusCode>, suppressed: u64) -> String {
        let method = self.method.as_str().to_lowercase();
        let latency = self.start.elapsed();
        let is_stream = code == Some(StatusCode::SWITCHING_PROTOCOLS);
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": object::new_uid(),
            "stage": if is_stream { "ResponseStarted" } else { "ResponseComplete" },
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
        match code {
            Some(code) => event["responseStatus"] = json!({"code": code.as_u16()}),
            None => event["annotations"]["pulselet/abandoned"] = json!("true"),
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
        if suppressed > 0 {
            event["annotations"]["pulselet/suppressed"] = json!(suppressed.to_string());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_whose_client_leaves_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = Arc::new(AuditLog::open(&path).unwrap());
        let ann = Identity {
            user: "ann".to_owned(),
            ..Identity::default()
        };
        for method in [Method::DELETE, Method::GET] {
            let mut request = Request::new(());
            *request.method_mut() = method;
            *request.uri_mut() = "/api/v1/namespaces/a/pods/b".parse().unwrap();
            let record = AuditRecord::new(&request, Some(&ann), ([127, 0, 0, 1], 1).into());
            drop(log.begin(record));
        }
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        let line: Value = serde_json::from_str(&text).expect("one line");
        assert_eq!(
            (&line["verb"], &line["annotations"]["pulselet/abandoned"]),
            (&json!("delete"), &json!("true"))
        );
    }

    #[test]
    fn strangers_write_a_few_lines_and_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::open(&directory.path().join("audit.log")).unwrap();
        let start = Instant::now();
        let allowed = (0..100).filter(|_| log.allow_stranger(start).is_some()).count();
        assert_eq!(allowed, 10);
        assert_eq!(log.allow_stranger(start + Duration::from_secs(1)), Some(90));
        assert_eq!(log.allow_stranger(start + Duration::from_secs(1)), Some(0));
    }
}
