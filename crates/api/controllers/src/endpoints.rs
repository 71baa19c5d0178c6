//! Which Pods are behind a Service: `EndpointSlice`s, and `Endpoints` for older clients.
//!
//! The controller holds what it needs of every Service and Pod, as two watches tell it, and writes what has changed.
//! `slices` is its decision. A kube-controller-manager does the same: while one holds its lease, ours steps back and takes
//! its slices away, so that no Pod is there twice.
//!
//! What must always hold: only slices of controllers, ours or a manager's that is gone, are changed or removed; Services
//! without a selector are their authors' business.

mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use pulselet_apiserver::{ApiError, LocalClient, Object, ObjectChange, ResourceKind, StatusReason};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::RETRY_PAUSE;
use slices::{Member, Selection, endpoints, slices};

/// How long further changes are waited for: Pods seldom come alone.
const GATHER: Duration = Duration::from_millis(20);
/// How often everything is compared with what is stored, for what others have changed, and how soon a manager that has
/// come or gone is noticed.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);
/// The lease of the program that has this controller too.
const MANAGER: &str = "kube-controller-manager";
const MANAGER_NAMESPACE: &str = "kube-system";
/// How long a lease counts that does not say.
const LEASE_SECONDS: i64 = 15;

/// Runs until it is dropped.
pub(crate) async fn run(client: LocalClient) {
    loop {
        if let Err(error) = follow(&client).await {
            tracing::warn!(%error, "the endpoints controller lost track of Services and Pods and reads them again");
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Writes endpoints until a watch cannot go on.
async fn follow(client: &LocalClient) -> Result<(), ApiError> {
    let (services, service_revision) = client.list(ResourceKind::SERVICE, None).await?;
    let (pods, pod_revision) = client.list(ResourceKind::Pod, None).await?;
    let mut known = Known::default();
    for service in services {
        known.note_service(key(&service), Some(&service));
    }
    for pod in pods {
        known.note_pod(key(&pod), Some(&pod));
    }
    let mut service_changes = client.watch(ResourceKind::SERVICE, service_revision).await?;
    let mut pod_changes = client.watch(ResourceKind::Pod, pod_revision).await?;
    let mut writer = Writer::new(client);
    let mut next_comparison = Instant::now();
    loop {
        if next_comparison <= Instant::now() {
            writer.compare_all(&mut known).await?;
            next_comparison = Instant::now() + COMPARE_INTERVAL;
        }
        writer.write(&mut known).await?;
        tokio::select! {
            changes = service_changes.next() => known.note_services(changes?),
            changes = pod_changes.next() => known.note_pods(changes?),
            () = sleep_until(next_comparison) => continue,
        }
        let gathered = Instant::now() + GATHER;
        loop {
            tokio::select! {
                changes = service_changes.next() => known.note_services(changes?),
                changes = pod_changes.next() => known.note_pods(changes?),
                () = sleep_until(gathered) => break,
            }
        }
    }
}

/// Namespace and name.
type Key = (String, String);

fn key(object: &Object) -> Key {
    (object.namespace().to_owned(), object.name().to_owned())
}

/// Of the end of a key of the store.
fn key_of(change: &ObjectChange) -> Option<Key> {
    let mut parts = change.key.rsplit('/');
    let name = parts.next()?;
    Some((parts.next()?.to_owned(), name.to_owned()))
}

/// What is known of Services that select Pods, and of Pods.
#[derive(Default)]
struct Known {
    services: BTreeMap<Key, Selection>,
    pods: BTreeMap<Key, Member>,
    /// Services whose objects may have to change.
    touched: BTreeSet<Key>,
}

impl Known {
    fn note_services(&mut self, changes: Vec<ObjectChange>) {
        for change in changes {
            if let Some(key) = key_of(&change) {
                self.note_service(key, change.object.as_ref());
            }
        }
    }

    fn note_pods(&mut self, changes: Vec<ObjectChange>) {
        for change in changes {
            if let Some(key) = key_of(&change) {
                self.note_pod(key, change.object.as_ref());
            }
        }
    }

    fn note_service(&mut self, key: Key, service: Option<&Object>) {
        let selection = service.and_then(Selection::new);
        if self.services.get(&key) == selection.as_ref() {
            return;
        }
        self.touched.insert(key.clone());
        match selection {
            Some(selection) => self.services.insert(key, selection),
            None => self.services.remove(&key),
        };
    }

    fn note_pod(&mut self, key: Key, pod: Option<&Object>) {
        let member = pod.and_then(Member::new);
        if self.pods.get(&key) == member.as_ref() {
            return;
        }
        for member in self.pods.get(&key).into_iter().chain(&member) {
            let selects = |(_, selection): &(&Key, &Selection)| selection.selects(member);
            let touched = self.services.iter().filter(selects);
            self.touched.extend(touched.map(|(key, _)| key.clone()));
        }
        match member {
            Some(member) => self.pods.insert(key, member),
            None => self.pods.remove(&key),
        };
    }

    /// The Pods that a Service selects.
    fn members(&self, (namespace, _): &Key, selection: &Selection) -> Vec<&Member> {
        let from = (namespace.clone(), String::new());
        let of_namespace = self.pods.range(from..);
        let of_namespace = of_namespace.take_while(|((of, _), _)| of == namespace);
        of_namespace
            .map(|(_, member)| member)
            .filter(|member| selection.selects(member))
            .collect()
    }
}

/// Makes the stored objects what they should be.
struct Writer<'a> {
    client: &'a LocalClient,
    /// The slices of each Service.
    slices: BTreeMap<Key, BTreeSet<Key>>,
    /// Someone else does the work.
    is_replaced: bool,
}

impl<'a> Writer<'a> {
    fn new(client: &'a LocalClient) -> Self {
        Self {
            client,
            slices: BTreeMap::new(),
            is_replaced: false,
        }
    }

    /// Looks who is there, and compares everything with what is stored.
    async fn compare_all(&mut self, known: &mut Known) -> Result<(), ApiError> {
        self.is_replaced = self.has_manager().await?;
        known.touched = known.services.keys().cloned().collect();
        if self.is_replaced {
            self.slices.clear();
        } else {
            self.write(known).await?;
        }
        self.remove_others().await
    }

    async fn has_manager(&self) -> Result<bool, ApiError> {
        let lease = self
            .client
            .get(ResourceKind::Lease, Some(MANAGER_NAMESPACE), MANAGER)
            .await?;
        Ok(lease.is_some_and(|lease| is_held(&lease, Timestamp::now())))
    }

    /// Writes the objects of the Services that were touched.
    async fn write(&mut self, known: &mut Known) -> Result<(), ApiError> {
        let touched = std::mem::take(&mut known.touched);
        if self.is_replaced {
            return Ok(());
        }
        let mut has_gone = false;
        for key in touched {
            let Some(selection) = known.services.get(&key) else {
                has_gone |= self.slices.remove(&key).is_some();
                continue;
            };
            let members = known.members(&key, selection);
            let slices = slices(selection, &members);
            for slice in &slices {
                self.put(ResourceKind::ENDPOINT_SLICE, slice).await?;
            }
            self.put(ResourceKind::ENDPOINTS, &endpoints(selection, &members))
                .await?;
            let names: BTreeSet<Key> = slices.iter().filter_map(named).collect();
            let before = self.slices.insert(key, names.clone());
            has_gone |= before.is_some_and(|before| !before.is_subset(&names));
        }
        if has_gone {
            self.remove_others().await?;
        }
        Ok(())
    }

    /// Creates an object or makes it what it should be.
    async fn put(&self, kind: ResourceKind, wanted: &Value) -> Result<(), ApiError> {
        let Some((namespace, name)) = named(wanted) else {
            return Ok(());
        };
        let stored = self.client.get(kind, Some(&namespace), &name).await?;
        let written = match stored {
            None => match Object::new(wanted.clone()) {
                Some(object) => self.client.ensure(kind, object).await,
                None => Ok(()),
            },
            Some(stored) if kind == ResourceKind::ENDPOINT_SLICE && !slices::is_ours(&stored) => {
                tracing::warn!(
                    slice = format!("{namespace}/{name}"),
                    "an EndpointSlice that somebody else wrote has the name of a Service's own: the Service's Pods are not \
                     found; rename it"
                );
                Ok(())
            }
            Some(stored) => match slices::changed(&stored, wanted).and_then(Object::new) {
                Some(object) => self.client.replace_unchanged(kind, &object).await,
                None => Ok(()),
            },
        };
        forgive(written)
    }

    /// Removes what this controller made for Services that are gone, and what a manager left that is gone itself: nobody keeps
    /// its slices true any more.
    async fn remove_others(&self) -> Result<(), ApiError> {
        let slices: BTreeSet<&Key> = self.slices.values().flatten().collect();
        let endpoints: BTreeSet<&Key> = self.slices.keys().collect();
        let has_manager = self.is_replaced || self.has_manager().await?;
        for (kind, kept) in [
            (ResourceKind::ENDPOINT_SLICE, slices),
            (ResourceKind::ENDPOINTS, endpoints),
        ] {
            // The manager writes the same Endpoints.
            if self.is_replaced && kind == ResourceKind::ENDPOINTS {
                continue;
            }
            let (objects, _) = self.client.list(kind, None).await?;
            for object in &objects {
                let is_over = slices::is_ours(object) && !kept.contains(&key(object));
                let is_left = !has_manager && slices::is_of_manager(object);
                if is_over || is_left {
                    forgive(self.client.delete_unchanged(kind, object).await.map(drop))?;
                }
            }
        }
        Ok(())
    }
}

fn named(object: &Value) -> Option<Key> {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let (namespace, name) = (text("/metadata/namespace")?, text("/metadata/name")?);
    Some((namespace.to_owned(), name.to_owned()))
}

/// What somebody else was faster with is compared again later; a namespace that ends takes nothing new.
fn forgive(written: Result<(), ApiError>) -> Result<(), ApiError> {
    match written {
        Err(error)
            if matches!(
                error.reason,
                StatusReason::Conflict | StatusReason::NotFound | StatusReason::Forbidden
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn is_held(lease: &Object, now: Timestamp) -> bool {
    let spec = &lease.value()["spec"];
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or(LEASE_SECONDS);
    let renewed = spec["renewTime"]
        .as_str()
        .and_then(|time| time.parse::<Timestamp>().ok());
    let is_held = spec["holderIdentity"]
        .as_str()
        .is_some_and(|holder| !holder.is_empty());
    is_held && renewed.is_some_and(|renewed| now.as_second() - renewed.as_second() <= seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manager_is_there_while_it_renews_its_lease() {
        let now: Timestamp = "2026-01-02T03:04:20Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str| {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed});
            Object::new(json!({"spec": spec})).unwrap()
        };
        assert!(is_held(&lease("me", "2026-01-02T03:04:10.000000Z"), now));
        assert!(!is_held(&lease("me", "2026-01-02T03:04:01.000000Z"), now));
        assert!(!is_held(&lease("", "2026-01-02T03:04:10.000000Z"), now));
        assert!(!is_held(&Object::new(json!({})).unwrap(), now));
    }
}
