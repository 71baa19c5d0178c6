//! Static pods: a directory of manifests and the pods that follow from it, with the config maps and secrets they use.
//!
//! A file that appears is run, one that changes replaces its pods, one that goes takes them with it. A pod that only uses
//! an object that has changed is left as it is: its volumes follow, its next life has the new variables. A file that cannot
//! be used is reported and changes nothing: what ran from it before runs on. The directory is looked at whenever the
//! kernel says that something changed, and now and then in case it did not.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::{RecursiveMode, Watcher as _};
use pulselet_model::{
    DecodeErrors, FieldError, GateSet, MAX_DOCUMENT_BYTES, ManifestObject, Pod, Profile, admit_config_map,
    admit_local, admit_secret, decode_documents, decode_object,
};
use pulselet_vocabulary::PodName;
use pulselet_volume::{LocalObject, LocalObjects};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::handle::{Gone, NodeHandle, RunManifestError};
use crate::pod::identity::{Origin, pod_name_of};
use crate::spans;

/// How long a file must be left alone before it is read, so that one that is being written is read once.
const SETTLE: Duration = Duration::from_millis(100);
/// How often the directory is looked at although nothing was reported: network file systems report nothing.
const RESCAN: Duration = Duration::from_secs(10);
/// Files looked at; a directory with more is not one of manifests.
const MAX_FILES: usize = 10_000;
/// Documents in one file.
const MAX_DOCUMENTS: usize = 1_000;

#[derive(Debug, Error)]
pub enum WatchError {
    #[error("cannot read the manifests in {path}: {source}", path = path.display())]
    ReadDirectory { path: PathBuf, source: io::Error },
}

/// Why a file is not used.
#[derive(Debug, Error)]
enum FileError {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("has more than {MAX_DOCUMENT_BYTES} bytes")]
    TooLarge,
    #[error("has more than {MAX_DOCUMENTS} documents")]
    TooMany,
    #[error("cannot be decoded: {0}")]
    Decode(DecodeErrors),
    #[error("pod \"{pod}\" is invalid: {}", list_errors(errors))]
    Invalid { pod: PodName, errors: Vec<FieldError> },
    #[error("{kind} {name:?} is invalid: {}", list_errors(errors))]
    InvalidObject {
        kind: &'static str,
        name: String,
        errors: Vec<FieldError>,
    },
    #[error("holds {kind} {name:?}, but this node takes them from its API: apply it there with kubectl")]
    ObjectOfApi { kind: &'static str, name: String },
    #[error("{kind} {name:?} is also in {other}")]
    DuplicateObject {
        kind: &'static str,
        name: String,
        other: String,
    },
    #[error("pod \"{pod}\" is also in {other}", other = other.display())]
    Duplicate { pod: PodName, other: PathBuf },
    #[error("pod \"{pod}\": {source}")]
    Run { pod: PodName, source: RunManifestError },
    #[error("has no object in it; remove the file to end its pods")]
    Empty,
}

/// What distinguishes two versions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    size: u64,
    inode: u64,
}

impl Stamp {
    /// Whether the file was written long enough ago. Of one from the future, by a clock that was set back, nobody knows.
    fn is_settled(&self) -> bool {
        let age = self.modified.and_then(|modified| modified.elapsed().ok());
        age.is_some_and(|age| age >= SETTLE)
    }
}

/// What the directory's objects are judged by, and where they go.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) gates: GateSet,
    /// Put behind the name of every pod.
    pub(crate) suffix: String,
    /// Where config maps and secrets go; `None` if an API has them all.
    pub(crate) objects: Option<Arc<LocalObjects>>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    rules: Rules,
    node: NodeHandle,
    files: BTreeMap<PathBuf, KnownFile>,
    /// Files that may be in the middle of being written, as they were seen.
    unsettled: BTreeMap<PathBuf, Stamp>,
}

/// A file as it was last looked at.
#[derive(Debug)]
struct KnownFile {
    stamp: Stamp,
    /// The pods it runs.
    pods: Vec<PodName>,
}

/// Follows a directory until the future is dropped. The directory must be readable now.
pub(crate) fn watch(
    path: PathBuf,
    rules: Rules,
    node: NodeHandle,
) -> Result<impl Future<Output = ()> + Send, WatchError> {
    let found = list(&path).map_err(|source| WatchError::ReadDirectory {
        path: path.clone(),
        source,
    })?;
    // Before the agent runs: what was adopted may need them at once.
    rules.recall_objects(found.keys());
    // One place is enough: a second change before the first was looked at is seen by the same look.
    let (changed, wakes) = mpsc::channel(1);
    let watcher = notify::recommended_watcher(move |_| {
        let _ = changed.try_send(());
    });
    let watcher = watcher.and_then(|mut watcher| {
        watcher.watch(&path, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    let watcher = watcher
        .inspect_err(|error| {
            tracing::warn!(%error, path = %path.display(), "cannot watch the manifests, looking every {RESCAN:?}");
        })
        .ok();
    let directory = Directory {
        path,
        rules,
        node,
        files: BTreeMap::new(),
        unsettled: BTreeMap::new(),
    };
    Ok(directory.follow(watcher, wakes))
}

impl Directory {
    async fn follow(mut self, watcher: Option<notify::RecommendedWatcher>, mut wakes: mpsc::Receiver<()>) {
        // The pods of the last agent that came from files: those whose file is gone must go too.
        if let Ok(pods) = self.node.pods().await {
            self.remember(pods.iter().map(|pod| (pod.pod_name(), &pod.origin)));
        }
        let stopped = self.node.stopped.all();
        self.remember(stopped.iter().map(|it| (pod_name_of(&it.pod), &it.origin)));
        loop {
            if self.look().await.is_err() {
                return;
            }
            let rescan = if self.unsettled.is_empty() { RESCAN } else { SETTLE };
            tokio::select! {
                Some(()) = wakes.recv(), if watcher.is_some() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(rescan) => {}
            }
        }
    }

    fn remember<'a>(&mut self, pods: impl Iterator<Item = (PodName, &'a Origin)>) {
        for (name, origin) in pods {
            if let Origin::Manifest { path } = origin {
                let never_read = Stamp {
                    modified: None,
                    size: u64::MAX,
                    inode: 0,
                };
                let known = self.files.entry(PathBuf::from(path)).or_insert(KnownFile {
                    stamp: never_read,
                    pods: Vec::new(),
                });
                if !known.pods.contains(&name) {
                    known.pods.push(name);
                }
            }
        }
    }

    /// Looks at every file once. An error means that the node is gone.
    async fn look(&mut self) -> Result<(), Gone> {
        let found = match list(&self.path) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(path = %self.path.display(), %error, "cannot read the manifests, pods run on");
                return Ok(());
            }
        };
        let gone: Vec<_> = self
            .files
            .keys()
            .filter(|path| !found.contains_key(*path))
            .cloned()
            .collect();
        for path in gone {
            if let Some(known) = self.files.remove(&path) {
                self.stop(&known.pods).await?;
            }
            self.rules.keep_objects(&path, Vec::new());
        }
        let seen_before = std::mem::take(&mut self.unsettled);
        for (path, stamp) in found {
            if self.files.get(&path).is_some_and(|known| known.stamp == stamp) {
                continue;
            }
            if stamp.is_settled() || seen_before.get(&path) == Some(&stamp) {
                self.changed(path, stamp).await?;
            } else {
                self.unsettled.insert(path, stamp);
            }
        }
        Ok(())
    }

    async fn changed(&mut self, path: PathBuf, stamp: Stamp) -> Result<(), Gone> {
        let before = self
            .files
            .remove(&path)
            .map(|known| known.pods)
            .unwrap_or_default();
        let pods = match self.run(&path).await? {
            Ok(pods) => {
                let dropped: Vec<_> = before.into_iter().filter(|pod| !pods.contains(pod)).collect();
                self.stop(&dropped).await?;
                pods
            }
            Err(error) => {
                tracing::error!(file = %path.display(), "the manifest {error}; nothing is changed");
                before
            }
        };
        self.files.insert(path, KnownFile { stamp, pods });
        Ok(())
    }

    /// Runs the pods of a file: all of them or none.
    async fn run(&self, path: &Path) -> Result<Result<Vec<PodName>, FileError>, Gone> {
        let (pods, objects) = match self.read(path) {
            Ok(contents) => contents,
            Err(error) => return Ok(Err(error)),
        };
        self.rules.keep_objects(path, objects);
        let mut names = Vec::with_capacity(pods.len());
        for pod in pods {
            let name = pod_name_of(&pod);
            let origin = Origin::Manifest {
                path: path.to_string_lossy().into_owned(),
            };
            if let Err(source) = self.node.run_manifest(pod, origin).await? {
                return Ok(Err(FileError::Run { pod: name, source }));
            }
            names.push(name);
        }
        Ok(Ok(names))
    }

    fn read(&self, path: &Path) -> Result<(Vec<Pod>, Vec<LocalObject>), FileError> {
        let bytes = std::fs::read(path)?;
        if bytes.len() > MAX_DOCUMENT_BYTES {
            return Err(FileError::TooLarge);
        }
        let (mut pods, mut objects) = (Vec::new(), Vec::new());
        for document in decode_documents(&bytes) {
            let document = document.map_err(|error| FileError::Decode(error.into()))?;
            let decoded = decode_object(&document, Profile::Pulselet);
            match decoded.object.map_err(FileError::Decode)? {
                ManifestObject::Pod(pod) => pods.push(self.admit_pod(path, *pod)?),
                ManifestObject::ConfigMap(map) => {
                    let admitted = admit_config_map(*map);
                    let map =
                        admitted.map_err(|errors| invalid_object("ConfigMap", &decoded.name, errors))?;
                    objects.push(self.rules.check(path, LocalObject::ConfigMap(Box::new(map)))?);
                }
                ManifestObject::Secret(secret) => {
                    let admitted = admit_secret(*secret);
                    let secret =
                        admitted.map_err(|errors| invalid_object("Secret", &decoded.name, errors))?;
                    objects.push(self.rules.check(path, LocalObject::Secret(Box::new(secret)))?);
                }
            }
            if pods.len() + objects.len() > MAX_DOCUMENTS {
                return Err(FileError::TooMany);
            }
        }
        // A power cut leaves such files, and whoever writes one has it for a moment.
        if pods.is_empty() && objects.is_empty() {
            return Err(FileError::Empty);
        }
        Ok((pods, objects))
    }

    fn admit_pod(&self, path: &Path, mut pod: Pod) -> Result<Pod, FileError> {
        if let Some(name) = &mut pod.metadata.name {
            name.push_str(&self.rules.suffix);
        }
        let name = pod_name_of(&pod);
        let admitted = admit_local(pod, Profile::Pulselet, self.rules.gates);
        let admission = admitted.map_err(|errors| FileError::Invalid {
            pod: name.clone(),
            errors,
        })?;
        for warning in &admission.warnings {
            spans::pod(&name).in_scope(|| tracing::warn!(file = %path.display(), "{warning}"));
        }
        if let Some(other) = self.owner(&name) {
            return Err(FileError::Duplicate { pod: name, other });
        }
        Ok(admission.pod)
    }

    /// The file that runs a pod of this name.
    fn owner(&self, pod: &PodName) -> Option<PathBuf> {
        let mut files = self.files.iter();
        let (path, _) = files.find(|(_, known)| known.pods.contains(pod))?;
        Some(path.clone())
    }

    async fn stop(&self, pods: &[PodName]) -> Result<(), Gone> {
        for pod in pods {
            spans::pod(pod).in_scope(|| tracing::info!("the pod's manifest is gone"));
            if let Err(error) = self.node.forget_stopped(pod).await {
                tracing::error!(%error, "the pod's manifest is gone, but it stays listed as stopped");
            }
            // Someone else may have stopped it before.
            let _ = self.node.delete_pod(pod, None).await?;
        }
        Ok(())
    }
}

impl Rules {
    /// Whether an object of a file can be used here.
    fn check(&self, path: &Path, object: LocalObject) -> Result<LocalObject, FileError> {
        let (kind, name) = (object.kind(), object.name().to_owned());
        let Some(objects) = &self.objects else {
            return Err(FileError::ObjectOfApi { kind, name });
        };
        match objects.other_owner(&object, &path.to_string_lossy()) {
            Some(other) => Err(FileError::DuplicateObject { kind, name, other }),
            None => Ok(object),
        }
    }

    fn keep_objects(&self, path: &Path, objects: Vec<LocalObject>) {
        if let Some(kept) = &self.objects {
            kept.replace(&path.to_string_lossy(), objects);
        }
    }

    /// Keeps the objects of all files that can be read. What is wrong with the others is said when their pods are run.
    fn recall_objects<'a>(&self, files: impl Iterator<Item = &'a PathBuf>) {
        for path in files.filter(|_| self.objects.is_some()) {
            let Ok(bytes) = std::fs::read(path) else { continue };
            let documents = decode_documents(&bytes).map_while(Result::ok);
            let objects = documents.filter_map(|document| {
                match decode_object(&document, Profile::Pulselet).object.ok()? {
                    ManifestObject::Pod(_) => None,
                    ManifestObject::ConfigMap(map) => {
                        Some(LocalObject::ConfigMap(Box::new(admit_config_map(*map).ok()?)))
                    }
                    ManifestObject::Secret(secret) => {
                        Some(LocalObject::Secret(Box::new(admit_secret(*secret).ok()?)))
                    }
                }
            });
            self.keep_objects(path, objects.collect());
        }
    }
}

fn invalid_object(kind: &'static str, name: &str, errors: Vec<FieldError>) -> FileError {
    let name = name.to_owned();
    FileError::InvalidObject { kind, name, errors }
}

fn list_errors(errors: &[FieldError]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

/// The manifests of a directory, in order of their names. Hidden files are someone's work in progress.
fn list(directory: &Path) -> io::Result<BTreeMap<PathBuf, Stamp>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory)?.take(MAX_FILES) {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let manifest = path
            .extension()
            .is_some_and(|kind| kind == "yaml" || kind == "yml" || kind == "json");
        if hidden || !manifest {
            continue;
        }
        // One that has just gone is seen at the next look; what is no file is no manifest.
        if let Ok(metadata) = std::fs::metadata(&path)
            && metadata.is_file()
        {
            let stamp = Stamp {
                modified: metadata.modified().ok(),
                size: metadata.len(),
                inode: metadata.ino(),
            };
            files.insert(path, stamp);
        }
    }
    Ok(files)
}
