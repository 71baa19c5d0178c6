//! The task that keeps the API's pods and the node's alike.
//!
//! It follows both sides, looks at a pod whenever one of them says that it has changed, and carries out what
//! [`decide`] says. What must always hold: one request per pod is under way at most, so that a later status never
//! overtakes an earlier one; whatever failed is looked at again; nothing is ended before the API has listed its pods.
//! Requests, and so what is remembered while the API is away, are bounded by the number of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pulselet_agent::{
    AddError, Feed, FeedChange, Gone, NodeHandle, Origin, PodEvent, PodView, pod_name_of, spans,
};
use pulselet_model::{Pod, PodStatus};
use pulselet_vocabulary::{PodName, Severity};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::Instrument as _;

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::decide::{Sight, Step, decide};
use crate::events::NewEvent;
use crate::registration::Registered;
use crate::selection::{Objection, Selectable};
use crate::watch::Seen;
use crate::{mirror, paths, status};

/// How often everything is compared although nothing was said.
const RESYNC: Duration = Duration::from_secs(10);
/// How long the API is not asked again to show a static pod that it has refused: its mind or its rules must change first.
const MIRROR_AGAIN: Duration = Duration::from_mins(1);
/// Requests under way at a time; the others wait their turn.
const MAX_REQUESTS: usize = 16;

/// What is known about a name, besides what the node says when asked.
#[derive(Debug, Default)]
struct TrackedPod {
    /// The pod as the API has it.
    api: Option<Arc<Pod>>,
    /// The uid of the one that was removed at the API while it ran.
    vanished: Option<String>,
    /// The uid of the one that the API had and has no more.
    removed: Option<String>,
    /// The uid and the grace period of the last deletion the node was asked for.
    asked: Option<(String, Option<Duration>)>,
    /// The uid and a hash of the manifest the node has.
    handed: Option<(String, u64)>,
    /// The uid of a pod that has ended here, and how it was.
    last_status: Option<(String, PodStatus)>,
    /// The uid and the status that the API has taken. It need not show all of it: it may know fewer fields.
    acknowledged: Option<(String, PodStatus)>,
    /// The API does not want to show this static pod.
    refused: Option<RefusedMirror>,
    flight: bool,
    /// To be looked at again when the request under way is answered, whatever the answer is.
    again: bool,
}

impl TrackedPod {
    /// Remembers a pod of the API, unless a newer version of it is known.
    fn note(&mut self, mut pod: Pod) {
        // Who wrote which field is half of a pod, and nothing to the node.
        pod.metadata.managed_fields = None;
        let older = |known: &Arc<Pod>| uid(known) == uid(&pod) && version(&pod) < version(known);
        if self.api.as_ref().is_some_and(older) {
            return;
        }
        // Somebody else may have written over what the API had taken.
        if self.api.as_ref().is_none_or(|known| known.status != pod.status) {
            self.acknowledged = None;
        }
        self.api = Some(Arc::new(pod));
    }

    /// Remembers a status that the API has taken, unless a newer version of the pod is known than that of the answer.
    fn acknowledge(&mut self, of: String, status: PodStatus, answered: Option<u64>) {
        if self.api.as_ref().is_some_and(|api| version(api) == answered) {
            self.acknowledged = Some((of, status));
        }
    }

    /// Remembers a pod that a request was answered with. The watch may have told of its removal before: whoever believed
    /// the answer then would run the pod again, and nobody would ever say that it is gone.
    fn note_answer(&mut self, pod: Pod) {
        if self.removed.as_deref() != Some(uid(&pod)) {
            self.note(pod);
        }
    }

    /// The API has that pod no more.
    fn remove(&mut self, of: &str) {
        self.api.take_if(|api| uid(api) == of);
        self.removed = Some(of.to_owned());
    }
}

/// Why the API does not show a static pod.
#[derive(Debug)]
struct RefusedMirror {
    /// The version of the file that was refused.
    uid: String,
    /// In the API's words.
    message: String,
    at: Instant,
}

/// A request that was answered.
struct Done {
    name: PodName,
    uid: String,
    what: Sent,
    answer: Result<Option<Box<Pod>>, ApiClientError>,
}

enum Sent {
    Status(Box<PodStatus>),
    Removal,
    Mirror,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pods {
    client: ApiClient,
    node: NodeHandle,
    feed: Feed,
    registered: watch::Receiver<Option<Registered>>,
    events: mpsc::Sender<NewEvent>,
    entries: BTreeMap<PodName, TrackedPod>,
    listed: bool,
    /// To be looked at as soon as a request may be sent.
    waiting: BTreeSet<PodName>,
    /// To be looked at again when the pause after a failure is over.
    failed: BTreeSet<PodName>,
    backoff: Backoff,
    pause: Option<Instant>,
    flights: JoinSet<Done>,
}

impl Pods {
    pub(crate) fn new(
        client: ApiClient,
        node: NodeHandle,
        feed: Feed,
        registered: watch::Receiver<Option<Registered>>,
        events: mpsc::Sender<NewEvent>,
    ) -> Self {
        Self {
            client,
            node,
            feed,
            registered,
            events,
            entries: BTreeMap::new(),
            listed: false,
            waiting: BTreeSet::new(),
            failed: BTreeSet::new(),
            backoff: Backoff::default(),
            pause: None,
            flights: JoinSet::new(),
        }
    }

    /// Runs until the node is gone.
    pub(crate) async fn run(mut self, mut seen: mpsc::Receiver<Seen>) {
        let feed = self.feed.clone();
        let mut resync = tokio::time::interval(RESYNC);
        resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut registered = self.registered.clone();
        loop {
            let pause = self.pause.unwrap_or_else(|| Instant::now() + RESYNC);
            let looked = tokio::select! {
                Some(seen) = seen.recv() => self.seen(seen).await,
                changes = feed.next() => self.follow(changes).await,
                Some(done) = self.flights.join_next() => match done {
                    Ok(done) => self.done(done).await,
                    Err(error) => {
                        tracing::error!(%error, "a request to the API panicked");
                        self.look_at_all().await
                    }
                },
                () = tokio::time::sleep_until(pause), if self.pause.is_some() => self.retry().await,
                Ok(()) = registered.changed() => self.look_at_all().await,
                _ = resync.tick() => self.look_at_all().await,
            };
            if let Err(Gone) = looked {
                return;
            }
        }
    }

    async fn seen(&mut self, seen: Seen) -> Result<(), Gone> {
        match seen {
            Seen::Listed(pods) => {
                self.listed = true;
                let mut missing: BTreeSet<PodName> = self.entries.keys().cloned().collect();
                for pod in pods {
                    missing.remove(&self.note(pod));
                }
                for name in missing {
                    if let Some(entry) = self.entries.get_mut(&name)
                        && let Some(api) = entry.api.take()
                    {
                        entry.remove(uid(&api));
                    }
                }
                for entry in self.entries.values_mut() {
                    entry.acknowledged = None;
                }
                self.look_at_all().await
            }
            Seen::Changed(pod) => {
                let name = self.note(*pod);
                self.look(&name).await
            }
            Seen::Gone(pod) => {
                let name = pod_name_of(&pod);
                let entry = self.entries.entry(name.clone()).or_default();
                entry.remove(uid(&pod));
                entry.vanished = Some(uid(&pod).to_owned());
                self.look(&name).await
            }
        }
    }

    /// Remembers a pod of the API.
    fn note(&mut self, pod: Pod) -> PodName {
        let name = pod_name_of(&pod);
        self.entries.entry(name.clone()).or_default().note(pod);
        name
    }

    async fn follow(&mut self, changes: FeedChange) -> Result<(), Gone> {
        for event in changes.events.into_iter().filter(|event| is_shown(&event.origin)) {
            // Events are a courtesy: when too many wait, new ones are left out.
            let _ = self.events.try_send(NewEvent::Pod(event));
        }
        for event in changes.node_events {
            let _ = self.events.try_send(NewEvent::Node(event));
        }
        let mut names = changes.changed;
        for last in changes.departed {
            names.insert(self.remember(last));
        }
        for name in names {
            self.look(&name).await?;
        }
        Ok(())
    }

    /// Keeps how a pod was last until the API knows.
    fn remember(&mut self, last: PodView) -> PodName {
        let name = last.pod_name();
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.last_status = Some((last.uid, last.status));
        }
        name
    }

    async fn retry(&mut self) -> Result<(), Gone> {
        self.pause = None;
        for name in std::mem::take(&mut self.failed) {
            self.look(&name).await?;
        }
        Ok(())
    }

    async fn look_at_all(&mut self) -> Result<(), Gone> {
        let views = self.node.pods().await?;
        let mut here: BTreeMap<PodName, PodView> =
            views.into_iter().map(|view| (view.pod_name(), view)).collect();
        let names: BTreeSet<PodName> = self.entries.keys().chain(here.keys()).cloned().collect();
        for name in names {
            let view = here.remove(&name);
            self.act(&name, view).instrument(spans::pod(&name)).await?;
        }
        Ok(())
    }

    async fn look(&mut self, name: &PodName) -> Result<(), Gone> {
        let view = self.node.pod(name).await?;
        self.act(name, view).instrument(spans::pod(name)).await
    }

    /// Decides about one pod and does what follows.
    async fn act(&mut self, name: &PodName, here: Option<PodView>) -> Result<(), Gone> {
        if here.is_none() {
            // It may have gone after the last changes were read; the API must not forget it before it knows how.
            for last in self.feed.take_departed() {
                self.remember(last);
            }
        }
        let entry = self.entries.entry(name.clone()).or_default();
        if here.is_none() {
            entry.asked = None;
            entry.handed = None;
        }
        let api = entry.api.clone();
        let of_api = |(of, status): &'_ (String, PodStatus)| {
            let same = api.as_ref().is_some_and(|api| uid(api) == of);
            same.then(|| status.clone())
        };
        let last_status = entry.last_status.as_ref().and_then(of_api);
        let steps = decide(&Sight {
            api: api.as_deref(),
            here: here.as_ref(),
            last_status: last_status.as_ref(),
            listed: self.listed,
            vanished: entry.vanished.as_deref(),
        });
        if api.is_none() && here.is_none() && !entry.flight {
            self.entries.remove(name);
            // Events are a courtesy: what is remembered of them is bounded, and this need not arrive.
            let _ = self.events.try_send(NewEvent::Gone(name.clone()));
        }
        for step in steps {
            // A request under way or one that was just sent: the rest follows from its answer.
            if self.step(name, step, api.as_ref(), here.as_ref()).await? {
                break;
            }
        }
        Ok(())
    }

    /// Carries out a step; true if it sends a request, or would if it could.
    async fn step(
        &mut self,
        name: &PodName,
        step: Step,
        api: Option<&Arc<Pod>>,
        here: Option<&PodView>,
    ) -> Result<bool, Gone> {
        match (step, api, here) {
            (Step::Run, Some(api), _) => self.add(name, api).await,
            (Step::Refresh, Some(api), _) => {
                let has_changed = self.refresh(name, api).await?;
                if has_changed {
                    // What was seen of the pod is older than its manifest, and must not be reported as if it followed from it.
                    Box::pin(self.look(name)).await?;
                }
                Ok(has_changed)
            }
            (Step::End(grace), _, Some(here)) => self.end(name, here, grace).await.map(|()| false),
            (Step::Report(status), Some(api), _) => Ok(self.report(name, api, status)),
            (Step::Release, Some(api), _) => {
                let call = Call::remove(paths::pod(api.namespace(), api.name()), uid(api));
                self.send(name, uid(api), Sent::Removal, call);
                Ok(true)
            }
            (Step::Publish, _, Some(here)) => self.publish(name, here).await,
            (Step::Run | Step::Refresh | Step::Report(_) | Step::Release, None, _)
            | (Step::End(_) | Step::Publish, _, None) => Ok(false),
        }
    }

    async fn add(&mut self, name: &PodName, api: &Arc<Pod>) -> Result<bool, Gone> {
        match self.objection(api).await {
            Ok(None) => {}
            Ok(Some(objection)) => {
                return Ok(self.reject(name, api, objection.reason(), objection.message()));
            }
            Err(error) => {
                // The next look asks again.
                tracing::warn!(%error, "the node's labels cannot be read, and a pod that selects by them waits");
                return Ok(false);
            }
        }
        let pod = for_the_node(api);
        let handed = (uid(api).to_owned(), fingerprint(&pod));
        let (reason, error) = match self.node.add_pod(pod, Origin::Api).await? {
            Ok(_) => {
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.handed = Some(handed);
                    entry.asked = None;
                }
                return Ok(false);
            }
            Err(AddError::ShuttingDown) => return Ok(false),
            Err(error @ AddError::NameTaken { .. }) => {
                // It goes away or it does not; that is looked at again and again.
                tracing::warn!(%error, "the API's pod cannot be run");
                return Ok(false);
            }
            Err(error @ AddError::Full) => ("OutOfpods", error),
            Err(error @ AddError::Plan(_)) => ("UnexpectedAdmissionError", error),
        };
        Ok(self.reject(name, api, reason, error.to_string()))
    }

    /// Why a pod may not be here. What is known of the node may be old: before a pod is refused, the API is asked again.
    async fn objection(&self, api: &Pod) -> Result<Option<Objection>, ApiClientError> {
        let registered = self.registered.borrow().clone();
        let Some(registered) = registered else {
            return Ok(None);
        };
        if registered.selectable.objection(api).is_none() {
            return Ok(None);
        }
        let path = format!("{}/{}", paths::NODES, registered.name);
        let node: Value = self.client.ask(Call::get(path)).await?;
        Ok(Selectable::read(&node).objection(api))
    }

    /// Reports that the node does not take a pod; true if that is under way.
    fn reject(&mut self, name: &PodName, api: &Arc<Pod>, reason: &'static str, message: String) -> bool {
        tracing::warn!(reason, message, "the API's pod is rejected");
        let status = status::rejected(api, reason, format!("Pod was rejected: {message}"));
        let is_new = self.report(name, api, Box::new(status));
        if is_new {
            // Events are a courtesy, as others are.
            let _ = self.events.try_send(NewEvent::Pod(PodEvent {
                pod: name.clone(),
                uid: uid(api).into(),
                origin: Origin::Api,
                container: None,
                severity: Severity::Warning,
                reason,
                message,
                at: Timestamp::now(),
            }));
        }
        is_new
    }

    /// Gives the node the API's manifest where that has changed; whether it has.
    async fn refresh(&mut self, name: &PodName, api: &Arc<Pod>) -> Result<bool, Gone> {
        let pod = for_the_node(api);
        let wanted = (uid(api).to_owned(), fingerprint(&pod));
        let mut known = self.entries.get(name).and_then(|entry| entry.handed.clone());
        if known.is_none() {
            // An earlier agent took it.
            let kept = self.node.manifest(name).await?;
            known = kept.map(|kept| (uid(&kept).to_owned(), fingerprint(&for_the_node(&kept))));
        }
        let has_changed = known.as_ref() != Some(&wanted);
        if has_changed && let Err(error) = self.node.update_pod(pod).await? {
            tracing::warn!(%error, "the changed manifest is not used");
        }
        if let Some(entry) = self.entries.get_mut(name) {
            entry.handed = Some(wanted);
        }
        Ok(has_changed)
    }

    async fn end(&mut self, name: &PodName, here: &PodView, grace: Option<Duration>) -> Result<(), Gone> {
        let asked = Some((here.uid.clone(), grace));
        let Some(entry) = self.entries.get_mut(name) else {
            return Ok(());
        };
        if entry.asked == asked {
            return Ok(());
        }
        entry.asked = asked;
        // It may have gone by itself.
        let _ = self.node.delete_exactly(here, grace).await?;
        Ok(())
    }

    /// Reports a status unless the API has it; true if that is under way.
    fn report(&mut self, name: &PodName, api: &Arc<Pod>, status: Box<PodStatus>) -> bool {
        let entry = self.entries.get(name);
        let acknowledged = entry.and_then(|entry| entry.acknowledged.as_ref());
        if acknowledged.is_some_and(|(of, known)| of == uid(api) && *known == *status) {
            return false;
        }
        let Some(call) = status::report(api, &status) else {
            return false;
        };
        self.send(name, uid(api), Sent::Status(status), call);
        true
    }

    async fn publish(&mut self, name: &PodName, here: &PodView) -> Result<bool, Gone> {
        let Some(registered) = self.registered.borrow().clone() else {
            return Ok(false);
        };
        let refused = self.entries.get(name).and_then(|entry| entry.refused.as_ref());
        if refused.is_some_and(|it| it.uid == here.uid && it.at.elapsed() < MIRROR_AGAIN) {
            return Ok(false);
        }
        let Some(pod) = self.node.manifest(name).await? else {
            return Ok(false);
        };
        let object: Value = mirror::object(&pod, here, &registered);
        let call = Call::create(paths::pods(&here.namespace), &object);
        self.send(name, &here.uid, Sent::Mirror, call);
        Ok(true)
    }

    /// Sends a request, or lets the pod wait for its turn.
    fn send(&mut self, name: &PodName, uid: &str, what: Sent, call: Call) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if self.failed.contains(name) {
            return;
        }
        if entry.flight {
            entry.again = true;
            return;
        }
        if self.flights.len() >= MAX_REQUESTS {
            self.waiting.insert(name.clone());
            return;
        }
        entry.flight = true;
        let (client, name, uid) = (self.client.clone(), name.clone(), uid.to_owned());
        let span = spans::pod(&name);
        let request = async move {
            let answer = match what {
                Sent::Removal => client.send(call).await.map(|()| None),
                Sent::Status(_) | Sent::Mirror => client.ask(call).await.map(Some),
            };
            Done {
                name,
                uid,
                what,
                answer,
            }
        };
        self.flights.spawn(request.instrument(span));
    }

    async fn done(&mut self, done: Done) -> Result<(), Gone> {
        let span = spans::pod(&done.name);
        span.in_scope(|| self.settle(done));
        self.next_in_turn().await
    }

    /// Takes note of an answer.
    fn settle(&mut self, done: Done) {
        let Done {
            name,
            uid: of,
            what,
            answer,
        } = done;
        let entry = self.entries.entry(name.clone()).or_default();
        entry.flight = false;
        if std::mem::take(&mut entry.again) {
            self.waiting.insert(name.clone());
        }
        match answer {
            Ok(pod) => {
                self.backoff.reset();
                let answered = pod.as_deref().and_then(version);
                if let Some(pod) = pod {
                    entry.note_answer(*pod);
                }
                match what {
                    Sent::Status(status) => entry.acknowledge(of, *status, answered),
                    Sent::Removal => forget(entry, &of),
                    Sent::Mirror => {}
                }
                self.waiting.insert(name);
            }
            // It is gone, or another by now: the watch says so, too.
            Err(error) if error.is_not_found() && matches!(what, Sent::Removal) => {
                forget(entry, &of);
                self.waiting.insert(name);
            }
            Err(error) if error.is_conflict() || error.is_not_found() => {
                tracing::debug!(%error, "the API's pod is another by now");
            }
            Err(ApiClientError::Refused { message, .. }) if matches!(what, Sent::Mirror) => {
                self.mirror_refused(&name, of, &message);
            }
            Err(error) => {
                let pause = self.backoff.next();
                tracing::warn!(%error, ?pause, "a request to the API failed, trying again");
                self.failed.insert(name);
                self.pause.get_or_insert_with(|| Instant::now() + pause);
            }
        }
    }

    /// The API does not show a static pod: that is said once for each reason.
    fn mirror_refused(&mut self, name: &PodName, uid: String, message: &str) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let known = entry.refused.as_ref();
        let is_known = known.is_some_and(|known| known.uid == uid && known.message == message);
        entry.refused = Some(RefusedMirror {
            uid: uid.clone(),
            message: message.to_owned(),
            at: Instant::now(),
        });
        if is_known {
            return;
        }
        tracing::warn!(reason = message, "the API does not show the static pod");
        // Events are a courtesy, as others are.
        let _ = self.events.try_send(NewEvent::Pod(PodEvent {
            pod: name.clone(),
            uid: uid.into(),
            origin: Origin::Manifest { path: String::new() },
            container: None,
            severity: Severity::Warning,
            reason: "MirrorRefused",
            message: format!("The API does not show this static pod: {message}"),
            at: Timestamp::now(),
        }));
    }

    /// Looks at pods that waited for a request to end, for as long as one may be sent.
    async fn next_in_turn(&mut self) -> Result<(), Gone> {
        while self.flights.len() < MAX_REQUESTS
            && let Some(name) = self.waiting.pop_first()
        {
            self.look(&name).await?;
        }
        Ok(())
    }
}

/// The API has removed this pod.
fn forget(entry: &mut TrackedPod, of: &str) {
    entry.api.take_if(|api| uid(api) == of);
    entry.last_status = None;
    entry.acknowledged = None;
}

/// Whether the API knows of such pods.
fn is_shown(origin: &Origin) -> bool {
    match origin {
        Origin::Api | Origin::Manifest { .. } => true,
        Origin::Run | Origin::Detached => false,
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// How new a version is. Servers say that versions are not numbers, and keep them numbers.
fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref()?.parse().ok()
}

/// The part of a pod that the node needs: not its status, nor who wrote which field.
fn for_the_node(api: &Pod) -> Pod {
    let mut pod = api.clone();
    pod.metadata.managed_fields = None;
    pod.metadata.resource_version = None;
    pod.status = PodStatus {
        qos_class: api.status.qos_class.clone(),
        ..PodStatus::default()
    };
    pod
}

/// Distinguishes manifests.
fn fingerprint(pod: &Pod) -> u64 {
    let content = (&pod.metadata.labels, &pod.metadata.annotations, &pod.spec);
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(&content)
        .expect("a pod is plain data")
        .hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_version(version: &str) -> Pod {
        let metadata = json!({"name": "web", "namespace": "default", "uid": "u", "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata})).expect("a pod")
    }

    #[test]
    fn an_answer_that_comes_after_the_removal_does_not_bring_the_pod_back() {
        let mut tracked = TrackedPod::default();
        tracked.note(of_version("3"));
        tracked.remove("u");
        tracked.note_answer(of_version("4"));
        assert!(tracked.api.is_none());
        // An API that lists it has it.
        tracked.note(of_version("4"));
        assert_eq!(tracked.api.as_deref().and_then(version), Some(4));
    }

    #[test]
    fn an_older_version_does_not_replace_a_newer_one() {
        let mut tracked = TrackedPod::default();
        tracked.note(of_version("10"));
        tracked.note_answer(of_version("9"));
        assert_eq!(tracked.api.as_deref().and_then(version), Some(10));
    }
}
