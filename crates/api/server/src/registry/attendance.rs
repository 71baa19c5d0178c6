//! Who looks after the kinds that others act on. A controller watches the objects that it acts on, so a kind that nobody
//! watches is one that nobody acts on.
//!
//! kubectl watches to show something, and does not count. What is watched at other servers of the same store is known from what
//! they say about it every few seconds, see [`super::copies`].

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::object::{self, Object};
use super::plain::Actor;
use super::resource::ResourceKind;
use super::{Registry, Written, service_warnings};
use crate::rest::accept::View;

/// What clients call themselves who only show.
const SPECTATOR: &str = "kubectl";

/// The same of the program that has a garbage collector. That one watches what other controllers of it watch by their watches,
/// and of all else the metadata.
const COLLECTOR: &str = "kube-controller-manager";

/// How many watches are open, by the plural of what they are about.
#[derive(Debug, Default)]
pub(crate) struct Attendance {
    here: Mutex<HashMap<&'static str, OpenWatches>>,
    /// At other servers of the same store.
    elsewhere: Mutex<Watched>,
    /// How many parts of this process forward to the Pods of Services.
    forwarders: AtomicUsize,
}

/// What is watched, by plurals, and whether a garbage collector does.
pub(crate) type Watched = BTreeMap<String, bool>;

#[derive(Debug, Default, Clone, Copy)]
struct OpenWatches {
    all: usize,
    by_collectors: usize,
}

/// Says that Services are acted on by this process, until it is dropped.
#[derive(Debug)]
pub struct ServiceForwarder(Arc<Attendance>);

impl Drop for ServiceForwarder {
    fn drop(&mut self) {
        self.0.forwarders.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A watch that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct Attending {
    attendance: Arc<Attendance>,
    plural: &'static str,
    collects: bool,
}

impl Attendance {
    /// Counts a watch; `None` if it is one that only shows.
    pub(crate) fn open(
        self: &Arc<Self>,
        kind: ResourceKind,
        view: View,
        user_agent: &str,
    ) -> Option<Attending> {
        if user_agent.starts_with(SPECTATOR) {
            return None;
        }
        let plural = kind.info().plural;
        let collects = view == View::Metadata || user_agent.starts_with(COLLECTOR);
        self.count(plural, collects, |number| number + 1);
        Some(Attending {
            attendance: Arc::clone(self),
            plural,
            collects,
        })
    }

    fn count(&self, plural: &'static str, collects: bool, change: impl Fn(usize) -> usize) {
        let mut open = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let watches = open.entry(plural).or_default();
        watches.all = change(watches.all);
        if collects {
            watches.by_collectors = change(watches.by_collectors);
        }
    }

    fn of(&self, plural: &str) -> OpenWatches {
        let open = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watches = open.get(plural).copied().unwrap_or_default();
        let elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(collects) = elsewhere.get(plural) {
            watches.all += 1;
            watches.by_collectors += usize::from(*collects);
        }
        watches
    }

    /// Counts a part of this process that forwards to the Pods of Services.
    pub(crate) fn forward_services(self: &Arc<Self>) -> ServiceForwarder {
        self.forwarders.fetch_add(1, Ordering::Relaxed);
        ServiceForwarder(Arc::clone(self))
    }

    fn forwards_services(&self) -> bool {
        self.forwarders.load(Ordering::Relaxed) > 0
    }

    /// What is watched at this server.
    pub(crate) fn watched_here(&self) -> Watched {
        let open = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.iter().filter(|(_, watches)| watches.all > 0);
        open.map(|(plural, watches)| ((*plural).to_owned(), watches.by_collectors > 0))
            .collect()
    }

    /// Notes what is watched at other servers of the same store.
    pub(crate) fn set_elsewhere(&self, watched: Watched) {
        *self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner) = watched;
    }

    /// Whether somebody removes what owners leave behind, and lets objects go that wait for that.
    pub(crate) fn collects(&self, kind: ResourceKind) -> bool {
        self.of(kind.info().plural).by_collectors > 0
    }

    /// What to say to someone who makes an object that nobody will act on; `None` if somebody will.
    pub(crate) fn complaint(&self, kind: ResourceKind) -> Option<String> {
        let ResourceKind::Plain(plain) = kind else {
            return None;
        };
        let name = plain.info().kind;
        match plain.row().actor {
            Actor::Readers => None,
            Actor::Watcher { plural, .. } if self.of(plural).all > 0 => None,
            Actor::Watcher { program, .. } => Some(format!(
                "nobody acts on this {name}: it is kept, and {program} would act on it if you ran it against this API"
            )),
            Actor::Nobody { why } => Some(format!("nobody acts on this {name}: {why}")),
        }
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.attendance
            .count(self.plural, self.collects, |number| number.saturating_sub(1));
    }
}

impl Registry {
    /// Says of a new object, as a warning and in an event, that nobody acts on it; of a Service that is acted on here, what
    /// is not done for it.
    pub(super) async fn tell_unattended(&self, kind: ResourceKind, written: &mut Written) {
        if kind == ResourceKind::SERVICE && self.attendance.forwards_services() {
            written
                .warnings
                .extend(service_warnings::unforwarded(&written.object));
            return;
        }
        let Some(complaint) = self.attendance.complaint(kind) else {
            return;
        };
        let endpoint = kind.storage();
        let object = &written.object;
        let namespace = if object.namespace().is_empty() {
            "default"
        } else {
            object.namespace()
        };
        let now = object::now();
        let event = json!({
            "metadata": {"name": format!("{}.{}", object.name(), object::new_uid()), "namespace": namespace},
            "involvedObject": {"apiVersion": endpoint.group_version.api_version(), "kind": endpoint.info().kind,
                "name": object.name(), "namespace": object.namespace(), "uid": object.uid()},
            "type": "Warning",
            "reason": "NobodyActs",
            "message": complaint,
            "source": {"component": "pulselet"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        if let Some(event) = Object::new(event)
            && let Err(error) = self.ensure(ResourceKind::Event, event).await
        {
            tracing::warn!(%error, "an event about an object that nobody acts on cannot be written");
        }
        written.warnings.push(complaint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_attended_while_somebody_watches_it() {
        let attendance = Arc::new(Attendance::default());
        let complaint = attendance.complaint(ResourceKind::JOB).unwrap();
        assert!(complaint.contains("kube-controller-manager"), "{complaint}");
        assert!(
            attendance
                .open(ResourceKind::JOB, View::Objects, "kubectl/v1.36")
                .is_none()
        );
        assert!(attendance.complaint(ResourceKind::JOB).is_some());
        let watch = attendance.open(ResourceKind::JOB, View::Objects, "manager/1");
        assert_eq!(attendance.complaint(ResourceKind::JOB), None);
        assert!(!attendance.collects(ResourceKind::JOB));
        let collector = attendance.open(ResourceKind::JOB, View::Metadata, "manager/1");
        assert!(attendance.collects(ResourceKind::JOB));
        drop(collector);
        assert!(!attendance.collects(ResourceKind::JOB));
        let agent = "kube-controller-manager/v1.36.4 (linux/amd64) kubernetes/0/shared-informers";
        let collector = attendance.open(ResourceKind::JOB, View::Objects, agent);
        assert!(attendance.collects(ResourceKind::JOB));
        drop((watch, collector));
        assert!(attendance.complaint(ResourceKind::JOB).is_some());
        assert!(!attendance.collects(ResourceKind::JOB));
        attendance.set_elsewhere([("jobs".to_owned(), false)].into());
        assert_eq!(attendance.complaint(ResourceKind::JOB), None);
        assert!(!attendance.collects(ResourceKind::JOB));
        attendance.set_elsewhere([("jobs".to_owned(), true)].into());
        assert!(attendance.collects(ResourceKind::JOB));
        assert_eq!(attendance.watched_here(), Watched::new());
        assert_eq!(attendance.complaint(ResourceKind::Pod), None);
        assert_eq!(attendance.complaint(ResourceKind::ENDPOINTS), None);
    }
}
