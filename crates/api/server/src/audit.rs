//! The audit log: who changed what, and who was refused; or what a policy says.
//!
//! Lines are JSON, in the form of upstream's audit events. Without a policy there is one of level `Metadata` for each request that
//! changes something and for each that is refused: neither what was sent nor what was answered is in it. With one (`policy`) the
//! first rule that fits says whether a request is recorded, at which stages, and with which bodies (`bodies`). A request waits
//! for room in the queue rather than going unrecorded. Strangers are the exception: they can be as many as they like and would
//! push everything else out of the log, so only some of their refusals are written, and the rest is counted.

mod bodies;
mod file;
mod policy;
mod record;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bodies::{BodyCopy, Unshown, strip_managed_fields};
use file::RotatingFile;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body as _;
pub(crate) use policy::AuditPolicy;
pub use policy::AuditPolicyError;
use policy::{AuditDecision, AuditLevel, AuditStage};
use record::AuditLine;
pub(crate) use record::AuditRecord;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::rest::Body;

/// Lines that wait to be written.
const QUEUE: usize = 1024;
/// How many refusals of strangers are written in a second.
const STRANGERS_PER_SECOND: u32 = 10;

/// Writes the audit log. What is in the queue is written before this is gone.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// `None` only while this is dropped.
    lines: Option<mpsc::Sender<String>>,
    writer: Option<JoinHandle<()>>,
    strangers: Mutex<Allowance>,
    /// `None` if changes and refusals are recorded.
    policy: Option<AuditPolicy>,
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
    /// `None` without a policy.
    decision: Option<AuditDecision>,
    /// `None` if what was sent is not recorded.
    sent: Option<BodyCopy>,
}

/// A watch whose end is recorded.
#[derive(Debug)]
struct AuditedStream {
    log: Arc<AuditLog>,
    record: AuditRecord,
    line: Option<AuditLine>,
}

impl AuditLog {
    pub(crate) fn open(path: &Path, policy: Option<AuditPolicy>) -> io::Result<Self> {
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
            policy,
        })
    }

    /// Begins to record a request.
    pub(crate) fn begin(
        self: &Arc<Self>,
        record: AuditRecord,
        request: Request<Body>,
    ) -> (AuditedRequest, Request<Body>) {
        let policy = self.policy.as_ref();
        let decision = policy.map(|policy| policy.decide(record.caller(), record.attributes()));
        let wants_sent = decision
            .as_ref()
            .is_some_and(|decision| decision.level >= AuditLevel::Request && record.has_object());
        let mut audited = AuditedRequest {
            log: Arc::clone(self),
            record: Some(record),
            decision,
            sent: None,
        };
        if !wants_sent {
            return (audited, request);
        }
        let (parts, body) = request.into_parts();
        let (copy, body) = BodyCopy::of(&parts.headers, body);
        audited.sent = Some(copy);
        (audited, Request::from_parts(parts, body))
    }

    /// Writes a line about a request. Those about strangers may be left out.
    async fn write(&self, record: &AuditRecord, mut line: AuditLine) {
        let Some(lines) = &self.lines else { return };
        if !record.is_of_stranger() {
            // The writer ends after all senders only.
            let _ = lines.send(record.line(line)).await;
            return;
        }
        let Some(suppressed) = self.allow_stranger(Instant::now()) else {
            return;
        };
        line.suppressed = suppressed;
        if lines.try_send(record.line(line)).is_err() {
            self.lock().suppressed += suppressed + 1;
        }
    }

    /// Writes a line where nobody is there to wait for room in the queue.
    fn write_now(&self, record: &AuditRecord, line: AuditLine) {
        if record.is_of_stranger() {
            return;
        }
        if let Some(lines) = &self.lines
            && let Err(error) = lines.try_send(record.line(line))
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
    /// The request is about to be served.
    pub(crate) async fn received(&self) {
        let stage = AuditStage::RequestReceived;
        if let (Some(record), Some(decision)) = (&self.record, &self.decision)
            && decision.records(stage)
        {
            self.log
                .write(record, AuditLine::new(decision.level, stage, None))
                .await;
        }
    }

    /// The request has been answered with this, which is sent when it is recorded.
    pub(crate) async fn answered(mut self, answer: Response<Body>) -> Response<Body> {
        let Some(record) = self.record.take() else {
            return answer;
        };
        let code = answer.status();
        let Some(decision) = self.decision.take() else {
            let is_refused = matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            if is_refused || record.mutates() {
                let is_stream = code == StatusCode::SWITCHING_PROTOCOLS;
                let line = AuditLine::new(AuditLevel::Metadata, last_stage(is_stream), Some(code));
                self.log.write(&record, line).await;
            }
            return answer;
        };
        if record.is_long(code) && (code.is_success() || code.is_informational()) {
            return self.started(record, &decision, answer).await;
        }
        let stage = AuditStage::ResponseComplete;
        if !decision.records(stage) {
            return answer;
        }
        let mut line = AuditLine::new(decision.level, stage, Some(code));
        let sent = self.sent.as_ref().and_then(BodyCopy::object);
        line.request = shown(sent, &decision, "requestObject", &mut line.left_out);
        let answer = if decision.level == AuditLevel::RequestResponse && record.has_object() {
            let (answer, response) = copied(answer).await;
            line.response = shown(response, &decision, "responseObject", &mut line.left_out);
            answer
        } else {
            answer
        };
        self.log.write(&record, line).await;
        answer
    }

    /// A watch or a stream begins. The end of a watch is recorded when it comes.
    async fn started(
        &self,
        record: AuditRecord,
        decision: &AuditDecision,
        answer: Response<Body>,
    ) -> Response<Body> {
        let code = answer.status();
        if decision.records(AuditStage::ResponseStarted) {
            let line = AuditLine::new(decision.level, AuditStage::ResponseStarted, Some(code));
            self.log.write(&record, line).await;
        }
        if code == StatusCode::SWITCHING_PROTOCOLS || !decision.records(AuditStage::ResponseComplete) {
            return answer;
        }
        let line = AuditLine::new(decision.level, AuditStage::ResponseComplete, Some(code));
        let stream = AuditedStream {
            log: Arc::clone(&self.log),
            record,
            line: Some(line),
        };
        answer.map(|body| {
            let audited = body.map_frame(move |frame| {
                // It is here as long as the body is.
                let _ = &stream;
                frame
            });
            audited.boxed_unsync()
        })
    }
}

impl Drop for AuditedStream {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            self.log.write_now(&self.record, line);
        }
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        let stage = AuditStage::ResponseComplete;
        let level = match &self.decision {
            Some(decision) if decision.records(stage) => decision.level,
            None if record.mutates() => AuditLevel::Metadata,
            Some(_) | None => return,
        };
        let mut line = AuditLine::new(level, stage, None);
        line.is_abandoned = true;
        self.log.write_now(&record, line);
    }
}

/// The last stage that is recorded of a request without a policy.
const fn last_stage(is_stream: bool) -> AuditStage {
    if is_stream {
        AuditStage::ResponseStarted
    } else {
        AuditStage::ResponseComplete
    }
}

/// A body as a line shows it.
fn shown(
    body: Option<Result<Value, Unshown>>,
    decision: &AuditDecision,
    name: &'static str,
    left_out: &mut Vec<&'static str>,
) -> Option<Value> {
    let Ok(mut object) = body? else {
        left_out.push(name);
        return None;
    };
    if decision.omit_managed_fields {
        strip_managed_fields(&mut object);
    }
    Some(object)
}

/// An answer and what is in it, if it is in memory as a whole.
async fn copied(answer: Response<Body>) -> (Response<Body>, Option<Result<Value, Unshown>>) {
    let (parts, body) = answer.into_parts();
    match body.size_hint().exact() {
        None => return (Response::from_parts(parts, body), Some(Err(Unshown))),
        Some(0) => return (Response::from_parts(parts, body), None),
        Some(_) => {}
    }
    match body.collect().await {
        Ok(collected) => {
            let bytes = collected.to_bytes();
            let object = bodies::answered(&parts.headers, &bytes);
            let body = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
            (Response::from_parts(parts, body), Some(object))
        }
        Err(error) => {
            let body = Full::default().map_err(|never| match never {}).boxed_unsync();
            tracing::error!(%error, "an answer could not be read for the audit log");
            (Response::from_parts(parts, body), Some(Err(Unshown)))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::access::Identity;

    #[test]
    fn a_change_whose_client_leaves_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = Arc::new(AuditLog::open(&path, None).unwrap());
        let ann = Identity {
            user: "ann".to_owned(),
            ..Identity::default()
        };
        for method in [Method::DELETE, Method::GET] {
            let mut request = Request::new(Body::default());
            *request.method_mut() = method;
            *request.uri_mut() = "/api/v1/namespaces/a/pods/b".parse().unwrap();
            let record = AuditRecord::new(&request, Some(&ann), ([127, 0, 0, 1], 1).into());
            drop(log.begin(record, request));
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
        let log = AuditLog::open(&directory.path().join("audit.log"), None).unwrap();
        let start = Instant::now();
        let allowed = (0..100).filter(|_| log.allow_stranger(start).is_some()).count();
        assert_eq!(allowed, 10);
        assert_eq!(log.allow_stranger(start + Duration::from_secs(1)), Some(90));
        assert_eq!(log.allow_stranger(start + Duration::from_secs(1)), Some(0));
    }
}
