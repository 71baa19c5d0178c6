//! Filling the volumes that the node writes, and keeping them current.
//!
//! There is one record per pod that has such volumes, from before its sandbox is made until its files are removed.
//! Whoever writes or reports holds the record's lock, so neither versions nor reports overtake each other, and nothing
//! is written after the end.
//!
//! What a source follows is written anew as soon as it has changed. Everything else is looked at in rounds: objects that
//! cannot be followed, tokens that are due, volumes that could not be filled; and now and then all of it, for what nobody
//! told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream;
use jiff::Timestamp;
use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1 as core;
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::claim::{self, ClaimError, claim_name};
use crate::contents::{Contents, ContentsError, Tokens, VolumeFiles};
use crate::directory::PodDirectory;
use crate::downward::Downward;
use crate::facts::NodeFacts;
use crate::memory::discard;
use crate::objects::{ObjectSource, Objects, SourceObject, Wanted};
use crate::tokens::GivenTokens;
use crate::used_objects::UsedObjects;
use crate::written::{PlaceFilesError, WrittenVolume};

/// How long a round waits for the next at the shortest; half as much more at the longest, so that nodes that were started
/// together do not ask together.
const REFRESH_PAUSE: Duration = Duration::from_secs(8);
/// Every so many rounds nothing is left out.
const FULL_ROUND_EVERY: u64 = 6;
/// Pods whose objects are looked at at once.
const REFRESHES_AT_ONCE: usize = 8;

/// A pod whose volumes are to be filled. `K` is how their owner knows it.
#[derive(Clone, Debug)]
pub struct PodVolumes<K> {
    pub key: K,
    pub uid: Arc<str>,
    pub directory: PodDirectory,
    pub pod: Arc<Pod>,
    /// The primary one first; empty while they are not known.
    pub addresses: Vec<IpAddr>,
}

/// The volumes of a pod that could not be filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FillReport {
    /// One text for an event per volume; empty if all is well.
    pub failures: Vec<String>,
    /// They are not the same as in the report before.
    pub is_new: bool,
}

/// Who is to know what could not be filled.
#[async_trait]
pub trait FillReports<K>: fmt::Debug + Send + Sync {
    async fn report(&self, pod: K, report: FillReport);
}

/// Fills the volumes of all pods of a node and keeps them current.
#[derive(Debug)]
pub struct VolumeKeeper<K> {
    source: Arc<dyn ObjectSource>,
    node: NodeFacts,
    reports: Arc<dyn FillReports<K>>,
    /// Everything that uses the disk at once, other parts of the node included.
    operations: Arc<Semaphore>,
    pause: Duration,
    pods: Mutex<Kept<K>>,
}

#[derive(Debug)]
struct Kept<K> {
    /// By uid.
    records: HashMap<Arc<str>, Arc<SharedRecord<K>>>,
    used: UsedObjects,
}

/// It is locked while volumes are written, network and disk included.
type SharedRecord<K> = tokio::sync::Mutex<Record<K>>;

/// What is known of the volumes of one pod.
#[derive(Debug)]
struct Record<K> {
    pod: PodVolumes<K>,
    /// Per volume, the versions that its files were made from.
    versions: BTreeMap<String, Vec<String>>,
    tokens: GivenTokens,
    /// The failures of the last report.
    reported: Vec<String>,
    /// All was well when its volumes were last looked at.
    is_settled: bool,
    /// The pod's files are being removed.
    over: bool,
}

impl<K> Record<K> {
    fn new(pod: PodVolumes<K>) -> Self {
        Self {
            pod,
            versions: BTreeMap::new(),
            tokens: GivenTokens::default(),
            reported: Vec::new(),
            is_settled: false,
            over: false,
        }
    }

    /// Goes on with a manifest that may have changed.
    fn renew(&mut self, pod: PodVolumes<K>) {
        self.pod = pod;
        self.versions.clear();
    }

    fn report(&mut self, failures: Vec<String>) -> FillReport {
        let is_new = failures != self.reported;
        self.reported.clone_from(&failures);
        FillReport { failures, is_new }
    }
}

/// Why the files of a volume could not be written.
#[derive(Debug, Error)]
enum FillError {
    #[error(transparent)]
    Contents(#[from] ContentsError),
    #[error(transparent)]
    Place(#[from] PlaceFilesError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// A volume that is not as it should be.
#[derive(Debug)]
struct Failure {
    volume: String,
    error: FillError,
}

impl Failure {
    fn message(&self) -> String {
        format!(
            "MountVolume.SetUp failed for volume {:?} : {}",
            self.volume, self.error
        )
    }

    fn is_outage(&self) -> bool {
        match &self.error {
            FillError::Contents(error) => error.is_outage(),
            FillError::Place(_) => false,
            FillError::Claim(error) => error.is_outage(),
        }
    }
}

impl<K: Copy> VolumeKeeper<K> {
    /// `operations` bounds what uses the disk at once; it can be shared with whoever else does.
    pub fn new(
        source: Arc<dyn ObjectSource>,
        node: NodeFacts,
        reports: Arc<dyn FillReports<K>>,
        operations: Arc<Semaphore>,
    ) -> Self {
        Self {
            source,
            node,
            reports,
            operations,
            pause: REFRESH_PAUSE,
            pods: Mutex::new(Kept {
                records: HashMap::new(),
                used: UsedObjects::default(),
            }),
        }
    }

    /// Waits this long, and up to half as long again, between two rounds.
    #[must_use]
    pub fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Fills every volume of a pod whose sandbox is about to be made, and keeps them current from then on. What could
    /// not be filled is reported. False if there is any.
    pub async fn fill(&self, pod: PodVolumes<K>) -> bool {
        let Some(shared) = self.record(&pod) else {
            return true;
        };
        let mut record = shared.lock().await;
        record.renew(pod);
        let failures = self.bring_up_to_date(&mut record).await;
        let made = record.report(failures.iter().map(Failure::message).collect());
        if made.failures.is_empty() {
            return true;
        }
        self.reports.report(record.pod.key, made).await;
        false
    }

    /// Keeps the volumes of a pod current that an earlier agent has filled.
    pub fn adopt(&self, pod: &PodVolumes<K>) {
        self.record(pod);
    }

    /// The manifest of a running pod has changed: its volumes are looked at now. What is new is reported.
    pub async fn update(&self, pod: PodVolumes<K>) {
        let shared = self.known(&pod.uid);
        if let Some(shared) = shared {
            self.follow(&mut self.locked(), &pod.uid, used_by(&pod.pod));
            shared.lock().await.renew(pod);
            self.refresh(&shared).await;
        }
    }

    /// Keeps the volumes of all pods current, for as long as it is polled. What is new is reported.
    pub async fn keep_current(&self) {
        tokio::join!(self.look_in_rounds(), self.follow_changes());
    }

    async fn look_in_rounds(&self) {
        for round in 1_u64.. {
            tokio::time::sleep(self.until_next_round()).await;
            let all: Vec<_> = self.locked().records.values().cloned().collect();
            let is_full = round % FULL_ROUND_EVERY == 0;
            stream::iter(all)
                .for_each_concurrent(REFRESHES_AT_ONCE, async |shared| {
                    if is_full || !self.is_current(&shared).await {
                        self.refresh(&shared).await;
                    }
                })
                .await;
        }
    }

    /// Looks at the volumes of whoever uses an object that has changed.
    async fn follow_changes(&self) {
        stream::unfold((), async |()| Some((self.source.changed().await, ())))
            .for_each_concurrent(REFRESHES_AT_ONCE, async |object| {
                for shared in self.users(&object) {
                    self.refresh(&shared).await;
                }
            })
            .await;
    }

    fn until_next_round(&self) -> Duration {
        let random = RandomState::new().hash_one(());
        let spread = u64::try_from(self.pause.as_millis() / 2).unwrap_or(u64::MAX);
        self.pause + Duration::from_millis(random % spread.max(1))
    }

    /// Nothing has to be asked for: whatever changes will be told.
    async fn is_current(&self, shared: &SharedRecord<K>) -> bool {
        let record = shared.lock().await;
        let is_followed = || {
            let kept = self.locked();
            let mut used = kept.used.of(&record.pod.uid);
            used.all(|object| self.source.is_followed(object))
        };
        record.is_settled && !record.tokens.are_due(Timestamp::now()) && is_followed()
    }

    fn users(&self, object: &SourceObject) -> Vec<Arc<SharedRecord<K>>> {
        let kept = self.locked();
        let users = kept.used.users(object);
        users.filter_map(|uid| kept.records.get(uid).cloned()).collect()
    }

    /// Nothing is written for this pod any more once this has returned.
    pub async fn forget(&self, uid: &str) {
        let removed = {
            let mut kept = self.locked();
            let removed = kept.records.remove_entry(uid);
            if let Some((uid, _)) = &removed {
                self.follow(&mut kept, uid, BTreeSet::new());
            }
            removed
        };
        if let Some((_, shared)) = removed {
            shared.lock().await.over = true;
        }
    }

    /// The pod has ended: nothing is written for it any more, and what it had in memory goes.
    pub async fn end(&self, uid: &str, directory: &PodDirectory) {
        self.forget(uid).await;
        let memory = directory.memory();
        let gone = tokio::task::spawn_blocking(move || {
            if let Err(error) = discard(&memory) {
                tracing::warn!(path = %memory.display(), %error, "cannot remove the secrets of a pod");
            }
        });
        gone.await.expect("removing does not panic");
    }

    fn locked(&self) -> MutexGuard<'_, Kept<K>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, uid: &str) -> Option<Arc<SharedRecord<K>>> {
        self.locked().records.get(uid).cloned()
    }

    /// Notes what a pod uses. The source is told under the lock, so that it is never told what was true before.
    fn follow(&self, kept: &mut Kept<K>, uid: &Arc<str>, used: BTreeSet<SourceObject>) {
        if kept.used.set(uid, used) {
            self.source.follow(kept.used.all());
        }
    }

    /// The record of a pod, made if there is none. `None` if the pod has no volumes to fill.
    fn record(&self, pod: &PodVolumes<K>) -> Option<Arc<SharedRecord<K>>> {
        let is_ours = |volume| Contents::of(volume).is_some() || claim_name(&pod.pod, volume).is_some();
        if !pod.pod.spec.volumes.iter().any(is_ours) {
            return None;
        }
        let mut kept = self.locked();
        self.follow(&mut kept, &pod.uid, used_by(&pod.pod));
        let record = kept
            .records
            .entry(Arc::clone(&pod.uid))
            .or_insert_with(|| Arc::new(SharedRecord::new(Record::new(pod.clone()))));
        Some(Arc::clone(record))
    }

    /// A volume that cannot be written keeps its files. An API that is away is not the pod's trouble.
    async fn refresh(&self, shared: &SharedRecord<K>) {
        let mut record = shared.lock().await;
        let failures = self.bring_up_to_date(&mut record).await;
        for failure in failures.iter().filter(|failure| failure.is_outage()) {
            tracing::debug!(uid = %record.pod.uid, volume = failure.volume, error = %failure.error, "cannot refresh a volume");
        }
        let lasting = failures.iter().filter(|failure| !failure.is_outage());
        let made = record.report(lasting.map(Failure::message).collect());
        if made.is_new {
            self.reports.report(record.pod.key, made).await;
        }
    }

    async fn bring_up_to_date(&self, record: &mut Record<K>) -> Vec<Failure> {
        if record.over {
            return Vec::new();
        }
        let pod = Arc::clone(&record.pod.pod);
        let objects = Objects::fetch(&*self.source, pod.namespace(), wanted(&pod)).await;
        let tokens = &mut record.tokens;
        let tokens = tokens.current(&*self.source, &pod, &record.pod.uid).await;
        let mut failures = Vec::new();
        for volume in &pod.spec.volumes {
            if let Err(error) = self.fill_one(record, volume, &objects, &tokens).await {
                let volume = volume.name.clone();
                failures.push(Failure { volume, error });
            }
        }
        record.is_settled = failures.is_empty();
        failures
    }

    /// Writes one volume, unless the versions it is made from are those that it has.
    async fn fill_one(
        &self,
        record: &mut Record<K>,
        volume: &core::Volume,
        objects: &Objects,
        tokens: &Tokens,
    ) -> Result<(), FillError> {
        claim::bind(&*self.source, &record.pod.directory, &record.pod.pod, volume).await?;
        let place = WrittenVolume::of(&record.pod.directory, volume);
        let (Some(contents), Some(place)) = (Contents::of(volume), place) else {
            return Ok(());
        };
        let versions = contents.versions(objects, tokens);
        let known = record.versions.get(&volume.name);
        if versions.is_some() && known == versions.as_ref() && place.directory().is_some() {
            return Ok(());
        }
        let downward = Downward {
            pod: &record.pod.pod,
            uid: &record.pod.uid,
            pod_ips: &record.pod.addresses,
            node: &self.node,
        };
        let files = contents.files(downward, objects, tokens)?;
        self.store(place, files).await?;
        match versions {
            Some(versions) => drop(record.versions.insert(volume.name.clone(), versions)),
            None => drop(record.versions.remove(&volume.name)),
        }
        Ok(())
    }

    async fn store(&self, place: WrittenVolume, files: VolumeFiles) -> Result<(), PlaceFilesError> {
        let _permit = self.operations.acquire().await;
        // The disk may not answer.
        tokio::task::spawn_blocking(move || place.store(&files))
            .await
            .expect("writing a volume does not panic")
    }
}

/// What the volumes of a pod are made from.
fn wanted(pod: &Pod) -> Wanted {
    let mut wanted = Wanted::default();
    for contents in pod.spec.volumes.iter().filter_map(Contents::of) {
        contents.want(&mut wanted);
    }
    wanted
}

fn used_by(pod: &Pod) -> BTreeSet<SourceObject> {
    wanted(pod).objects(pod.namespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::node_box;
    use crate::objects::{ChangedObjects, SourceError, SourceKind, Token, TokenRequest};
    use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
    use serde_json::json;

    /// One config map that can be changed and be away, and no secrets.
    #[derive(Debug, Default)]
    struct Changing {
        object: Mutex<Option<(u32, &'static str)>>,
        changed: ChangedObjects,
        followed: Mutex<BTreeSet<SourceObject>>,
    }

    #[async_trait]
    impl ObjectSource for Changing {
        async fn config_map(&self, _: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
            let Some((version, text)) = *self.object.lock().unwrap() else {
                let message = "connection refused".to_owned();
                return Err(SourceError::Fetch { message });
            };
            let metadata = json!({"name": name, "resourceVersion": version.to_string()});
            let object = json!({"metadata": metadata, "data": {"key": text}});
            Ok(Some(Arc::new(serde_json::from_value(object).unwrap())))
        }

        async fn secret(&self, _: &str, _: &str) -> Result<Option<Arc<Secret>>, SourceError> {
            Ok(None)
        }

        async fn token(&self, _: &TokenRequest) -> Result<Token, SourceError> {
            Err(SourceError::NoApi)
        }

        fn follow(&self, used: BTreeSet<SourceObject>) {
            *self.followed.lock().unwrap() = used;
        }

        fn is_followed(&self, object: &SourceObject) -> bool {
            self.followed.lock().unwrap().contains(object)
        }

        async fn changed(&self) -> SourceObject {
            self.changed.next().await
        }
    }

    #[derive(Debug, Default)]
    struct Collected(Mutex<Vec<(u32, FillReport)>>);

    #[async_trait]
    impl FillReports<u32> for Collected {
        async fn report(&self, pod: u32, report: FillReport) {
            self.0.lock().unwrap().push((pod, report));
        }
    }

    struct Fixture {
        directory: tempfile::TempDir,
        source: Arc<Changing>,
        reports: Arc<Collected>,
        keeper: VolumeKeeper<u32>,
    }

    impl Fixture {
        fn new() -> Self {
            let source = Arc::new(Changing::default());
            let reports = Arc::new(Collected::default());
            let operations = Arc::new(Semaphore::new(1));
            let (objects, reporter) = (Arc::clone(&source), Arc::clone(&reports));
            Self {
                directory: tempfile::tempdir().unwrap(),
                keeper: VolumeKeeper::new(objects, node_box(), reporter, operations),
                source,
                reports,
            }
        }

        fn pod(&self, volumes: &serde_json::Value) -> PodVolumes<u32> {
            let pod = json!({"metadata": {"name": "web"}, "spec": {"volumes": volumes}});
            PodVolumes {
                key: 7,
                uid: "u-1".into(),
                directory: PodDirectory::new(self.directory.path()),
                pod: Arc::new(serde_json::from_value(pod).unwrap()),
                addresses: Vec::new(),
            }
        }

        fn set(&self, object: Option<(u32, &'static str)>) {
            *self.source.object.lock().unwrap() = object;
        }

        fn record(&self) -> Arc<SharedRecord<u32>> {
            self.keeper.known("u-1").expect("a pod")
        }

        fn followed(&self) -> BTreeSet<SourceObject> {
            self.source.followed.lock().unwrap().clone()
        }

        async fn refresh(&self) {
            self.keeper.refresh(&self.record()).await;
        }

        /// What a container reads.
        fn text(&self) -> Option<String> {
            let volume = PodDirectory::new(self.directory.path()).config_map("v");
            std::fs::read_to_string(volume.join("key")).ok()
        }

        fn take_reports(&self) -> Vec<(u32, FillReport)> {
            std::mem::take(&mut *self.reports.0.lock().unwrap())
        }
    }

    fn config_map() -> serde_json::Value {
        json!([{"name": "v", "configMap": {"name": "settings"}}, {"name": "w", "emptyDir": {}}])
    }

    #[tokio::test]
    async fn a_volume_waits_for_its_object_and_follows_it_until_the_end() {
        let fixture = Fixture::new();
        let failures = |is_new| {
            let text = "MountVolume.SetUp failed for volume \"v\" : cannot get configmap \"settings\": connection refused";
            let failures = vec![text.to_owned()];
            vec![(7, FillReport { failures, is_new })]
        };
        assert!(!fixture.keeper.fill(fixture.pod(&config_map())).await);
        assert_eq!(fixture.take_reports(), failures(true));
        assert!(!fixture.keeper.fill(fixture.pod(&config_map())).await);
        assert_eq!(fixture.take_reports(), failures(false));
        fixture.set(Some((1, "one")));
        assert!(fixture.keeper.fill(fixture.pod(&config_map())).await);
        assert_eq!(fixture.text().as_deref(), Some("one"));
        // An API that is away changes nothing and is not worth a report.
        fixture.set(None);
        fixture.refresh().await;
        fixture.set(Some((2, "two")));
        fixture.refresh().await;
        assert_eq!(fixture.text().as_deref(), Some("two"));
        fixture.keeper.forget("u-1").await;
        fixture.set(Some((3, "three")));
        fixture.keeper.update(fixture.pod(&config_map())).await;
        assert_eq!(fixture.text().as_deref(), Some("two"));
        assert_eq!(fixture.take_reports(), []);
    }

    #[tokio::test]
    async fn a_running_pod_is_reported_on_when_something_changes() {
        let fixture = Fixture::new();
        fixture.set(Some((1, "one")));
        fixture.keeper.adopt(&fixture.pod(&config_map()));
        fixture.refresh().await;
        assert_eq!(fixture.text().as_deref(), Some("one"));
        let missing = json!([{"name": "s", "secret": {"secretName": "none"}}]);
        fixture.keeper.update(fixture.pod(&missing)).await;
        fixture.refresh().await;
        let reports = fixture.take_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        fixture.keeper.update(fixture.pod(&config_map())).await;
        let well = FillReport {
            failures: Vec::new(),
            is_new: true,
        };
        assert_eq!(fixture.take_reports(), [(7, well)]);
    }

    #[tokio::test]
    async fn a_change_is_written_when_it_is_told_and_what_is_followed_is_not_asked_for() {
        let mut fixture = Fixture::new();
        fixture.keeper.pause = Duration::from_hours(1);
        fixture.set(Some((1, "one")));
        assert!(fixture.keeper.fill(fixture.pod(&config_map())).await);
        let settings = SourceObject {
            kind: SourceKind::ConfigMap,
            namespace: "default".to_owned(),
            name: "settings".to_owned(),
        };
        assert_eq!(fixture.followed(), BTreeSet::from([settings.clone()]));
        assert!(fixture.keeper.is_current(&fixture.record()).await);
        fixture.set(Some((2, "two")));
        fixture.source.changed.add(settings);
        let written = async {
            while fixture.text().as_deref() != Some("two") {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = fixture.keeper.keep_current() => {}
            () = written => {}
        }
        fixture.source.follow(BTreeSet::new());
        assert!(!fixture.keeper.is_current(&fixture.record()).await);
        fixture.keeper.adopt(&fixture.pod(&config_map()));
        fixture.keeper.forget("u-1").await;
        assert_eq!(fixture.followed(), BTreeSet::new());
    }

    #[tokio::test]
    async fn what_could_not_be_filled_is_looked_at_again() {
        let fixture = Fixture::new();
        assert!(!fixture.keeper.fill(fixture.pod(&config_map())).await);
        assert!(!fixture.keeper.is_current(&fixture.record()).await);
    }

    #[tokio::test]
    async fn a_pod_without_such_volumes_costs_nothing() {
        let fixture = Fixture::new();
        let pod = fixture.pod(&json!([{"name": "w", "emptyDir": {}}]));
        assert!(fixture.keeper.fill(pod).await);
        assert!(fixture.keeper.locked().records.is_empty());
    }
}
