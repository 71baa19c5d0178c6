//! The pods of a namespace, for whoever only looks: their objects and events as they change, and their logs.
//!
//! Nothing here changes anything at the API. What may not be read is said, not tried in another way.

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pulselet_model::Pod;
use pulselet_vocabulary::PodName;
use serde::Deserialize;
use tokio::sync::{mpsc, watch as value};
use tokio::task::JoinSet;

use crate::client::{ApiClient, ApiClientError, Call};
use crate::paths;
use crate::watch::{self, Followed, Seen};

/// What names consist of stays readable; all else is encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// Bytes of a log's line that are read; what is longer is told in pieces.
const MAX_LOG_LINE: usize = 64 * 1024;

/// Somebody who looks at the pods of one namespace.
#[derive(Clone, Debug)]
pub struct PodObserver {
    client: ApiClient,
    namespace: String,
}

/// What the API says about a namespace, until this is dropped.
#[derive(Debug)]
pub struct ObservedNamespace {
    pub pods: mpsc::Receiver<Seen<Pod>>,
    pub events: mpsc::Receiver<Seen<ObservedEvent>>,
    /// Why pods are not known now; `None` if they are.
    pub pods_trouble: value::Receiver<Option<String>>,
    /// The same for events, which a role may not let somebody read.
    pub events_trouble: value::Receiver<Option<String>>,
    _tasks: JoinSet<()>,
}

/// An event, as far as it says something about a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedEvent {
    pub metadata: ObservedEventMeta,
    pub involved_object: ObservedEventSubject,
    pub reason: String,
    pub message: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    pub count: Option<u32>,
    pub first_timestamp: Option<Timestamp>,
    pub last_timestamp: Option<Timestamp>,
    pub event_time: Option<Timestamp>,
    pub series: Option<ObservedEventSeries>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedEventMeta {
    pub uid: String,
    pub creation_timestamp: Option<Timestamp>,
}

/// What an event is about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedEventSubject {
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// Such as `spec.containers{app}`.
    pub field_path: String,
}

/// How often an event of the newer kind was repeated.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedEventSeries {
    pub count: u32,
    pub last_observed_time: Option<Timestamp>,
}

impl ObservedEvent {
    /// How often it happened.
    pub fn times(&self) -> u32 {
        let series = self.series.as_ref().map(|series| series.count);
        series.or(self.count).unwrap_or(1).max(1)
    }

    /// When it happened first; `None` if it does not say.
    pub fn first(&self) -> Option<Timestamp> {
        self.first_timestamp
            .or(self.event_time)
            .or(self.metadata.creation_timestamp)
    }

    /// When it happened last; `None` if it does not say.
    pub fn last(&self) -> Option<Timestamp> {
        let series = self.series.as_ref().and_then(|series| series.last_observed_time);
        series.or(self.last_timestamp).or_else(|| self.first())
    }

    /// The container it is about; `None` if it is about the pod.
    pub fn container(&self) -> Option<&str> {
        let (_, rest) = self.involved_object.field_path.split_once('{')?;
        rest.strip_suffix('}')
    }
}

impl PodObserver {
    pub fn new(client: ApiClient, namespace: String) -> Self {
        Self { client, namespace }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Where the API is, for people to read.
    pub fn server(&self) -> String {
        self.client.server()
    }

    /// Whether pods can be listed, so that a slip in a kubeconfig or a role is told at once.
    pub async fn check(&self) -> Result<(), ApiClientError> {
        let path = format!("{}?limit=1", paths::pods(&self.namespace));
        self.client.send(Call::get(path)).await
    }

    /// Begins to follow pods and events.
    pub fn follow(&self) -> ObservedNamespace {
        let mut tasks = JoinSet::new();
        let (trouble, pods_trouble) = value::channel(None);
        let (sink, pods) = mpsc::channel(watch::BACKLOG);
        let followed = Followed::pods_in(&self.namespace, trouble);
        tasks.spawn(watch::follow(self.client.clone(), followed, sink));
        let (trouble, events_trouble) = value::channel(None);
        let (sink, events) = mpsc::channel(watch::BACKLOG);
        let followed = Followed::events_in(&self.namespace, trouble);
        tasks.spawn(watch::follow(self.client.clone(), followed, sink));
        ObservedNamespace {
            pods,
            events,
            pods_trouble,
            events_trouble,
            _tasks: tasks,
        }
    }

    /// A pod as it is now.
    pub async fn pod(&self, pod: &PodName) -> Result<Pod, ApiClientError> {
        let call = Call::get(paths::pod(&encoded(&pod.namespace), &encoded(&pod.name)));
        self.client.ask(call).await
    }

    /// The last lines of a container's log and what is added, until its life ends.
    pub async fn log(
        &self,
        pod: &PodName,
        container: &str,
        tail: usize,
    ) -> Result<ObservedLog, ApiClientError> {
        let path = paths::pod(&encoded(&pod.namespace), &encoded(&pod.name));
        let container = encoded(container);
        let query = format!("container={container}&follow=true&timestamps=true&tailLines={tail}");
        let body = self
            .client
            .stream(Call::get(format!("{path}/log?{query}")))
            .await?;
        Ok(ObservedLog {
            body,
            read: BytesMut::new(),
        })
    }
}

/// What stands in a path or a query.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// A log as it comes.
#[derive(Debug)]
pub struct ObservedLog {
    body: Incoming,
    read: BytesMut,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLogLine {
    /// RFC 3339; empty where the server gave none.
    pub time: String,
    pub text: String,
}

impl ObservedLog {
    /// The next line; `None` if the log has ended, in order or not.
    pub async fn next(&mut self) -> Option<ObservedLogLine> {
        loop {
            let end = self.read.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.read.split_to(end + 1);
                return Some(split_time(&String::from_utf8_lossy(&line[..end])));
            }
            if self.read.len() > MAX_LOG_LINE {
                let piece = self.read.split();
                return Some(split_time(&String::from_utf8_lossy(&piece)));
            }
            let frame = self.body.frame().await?.ok()?;
            self.read
                .extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }
}

/// With `timestamps=true` a line begins with its time and a space.
fn split_time(line: &str) -> ObservedLogLine {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let (time, text) = line.split_once(' ').unwrap_or((line, ""));
    let (time, text) = if time.parse::<Timestamp>().is_ok() {
        (time, text)
    } else {
        ("", line)
    };
    ObservedLogLine {
        time: time.to_owned(),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_kinds_of_events_say_how_often_and_when() {
        let old: ObservedEvent = serde_json::from_value(json!({"metadata": {"uid": "u"}, "count": 3,
            "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:25Z", "eventTime": null,
            "involvedObject": {"kind": "Pod", "fieldPath": "spec.initContainers{setup}"}}))
        .unwrap();
        assert_eq!((old.times(), old.container()), (3, Some("setup")));
        assert_eq!(old.last().unwrap().to_string(), "2026-01-02T03:04:25Z");
        let new: ObservedEvent = serde_json::from_value(json!({"eventTime": "2026-01-02T03:04:05.123456Z",
            "firstTimestamp": null, "lastTimestamp": null,
            "series": {"count": 2, "lastObservedTime": "2026-01-02T03:05:00.000000Z"}}))
        .unwrap();
        assert_eq!((new.times(), new.container()), (2, None));
        assert_eq!(new.first().unwrap().to_string(), "2026-01-02T03:04:05.123456Z");
        assert_eq!(new.last().unwrap().to_string(), "2026-01-02T03:05:00Z");
        assert_eq!(ObservedEvent::default().last(), None);
    }

    #[test]
    fn a_log_line_is_cut_after_its_time() {
        let line = split_time("2026-01-02T03:04:05.123456789Z hello, world");
        assert_eq!(line.time, "2026-01-02T03:04:05.123456789Z");
        assert_eq!(line.text, "hello, world");
        assert_eq!(split_time("no time here").text, "no time here");
        assert_eq!(split_time("2026-01-02T03:04:05Z").text, "");
    }
}
