//! A pod's volumes: what they are made from, where they are, and how they are kept current.
//!
//! There are two sorts. A container fills an `emptyDir` or a `hostPath` itself; the node only makes or checks it. Config
//! maps, secrets, the downward API, tokens and projections of these are *written*: the node turns objects into files.
//!
//! A volume's way, with the type that does it:
//!
//! 1. **Made from** — [`ObjectSource`] gives config maps, secrets and tokens, [`Downward`] what a pod may know about
//!    itself and its node ([`NodeFacts`]). [`Objects`] are those that one pod or container names, asked for together.
//! 2. **Fill and refresh** — [`VolumeKeeper::fill`] writes a pod's volumes before its sandbox is made and
//!    [`VolumeKeeper::keep_current`] writes them again when the source tells of a change, and looks itself every ten
//!    seconds or so at what the source cannot follow. A new version is written beside the old one, and one rename
//!    changes them. [`FillReports`] get what could not be written.
//! 3. **Where it is** — [`PreparedVolume`] is a volume as a path on the host that can be mounted, and makes what is missing
//!    of a sub path. All paths are below the pod's [`PodDirectory`].
//! 4. **Measure** — [`exceeded`] compares what an `emptyDir` takes with what it may take.
//! 5. **Clean up** — [`VolumeKeeper::end`] takes back the memory of a pod that has ended; [`discard`] removes a directory
//!    after everything that is mounted below it.
//!
//! Inside, each subject is a module: `objects`, `downward`, `facts` and `contents` (what files there are, as values),
//! `atomic` (one version as a whole), `memory` (file systems in memory), `written` (the two together), `tokens`,
//! `used_objects` and `refresh` (over time), `prepare`, `sub_path` and `directory` (where), `size_limit` (how much).
//!
//! What always holds:
//! - containers cannot write to what the node has written, and a reader sees one version as a whole;
//! - no path of a manifest and no link in place leads out of a volume;
//! - a volume that cannot be written anew keeps its files;
//! - a directory is removed only after everything mounted below it.
//!
//! Left to others: mounting a volume into a container (the runtime), what follows from a volume that cannot be filled or
//! is too large (the agent and the engine), and how an API is asked (whoever provides the [`ObjectSource`]).
//!
//! ```
//! use std::sync::Arc;
//!
//! use pulselet_model::Pod;
//! use pulselet_volume::{
//!     FillReport, FillReports, NoObjects, NodeFacts, PodDirectory, PodVolumes, PreparedVolume, VolumeKeeper,
//! };
//! use tokio::sync::Semaphore;
//!
//! /// Prints what could not be filled.
//! #[derive(Debug)]
//! struct ToStderr;
//!
//! #[async_trait::async_trait]
//! impl FillReports<u32> for ToStderr {
//!     async fn report(&self, pod: u32, report: FillReport) {
//!         eprintln!("pod {pod}: {report:?}");
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pod: Pod = serde_json::from_value(serde_json::json!({
//!     "metadata": {"name": "web", "labels": {"app": "shop"}},
//!     "spec": {"volumes": [{"name": "about", "downwardAPI": {"items": [
//!         {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
//!     ]}}]},
//! }))?;
//! let root = tempfile::tempdir()?;
//! let directory = PodDirectory::new(root.path().join("pod"));
//! let at_once = Arc::new(Semaphore::new(1));
//! let keeper = VolumeKeeper::new(Arc::new(NoObjects), NodeFacts::detect(), Arc::new(ToStderr), at_once);
//! let volumes = PodVolumes {
//!     key: 1,
//!     uid: "u-1".into(),
//!     directory: directory.clone(),
//!     pod: Arc::new(pod.clone()),
//!     addresses: Vec::new(),
//! };
//! assert!(keeper.fill(volumes).await);
//!
//! let volume = PreparedVolume::new(&directory, &pod, &pod.spec.volumes[0])?;
//! assert_eq!(std::fs::read_to_string(volume.path.join("labels"))?, "app=\"shop\"");
//! assert!(volume.read_only);
//!
//! keeper.end("u-1", &directory).await;
//! # Ok(())
//! # }
//! ```

mod atomic;
mod claim;
mod contents;
mod directory;
mod downward;
mod facts;
mod memory;
mod objects;
mod prepare;
mod refresh;
mod size_limit;
mod sub_path;
mod tokens;
mod used_objects;
mod written;

pub use directory::PodDirectory;
pub use downward::{Downward, DownwardError};
pub use facts::NodeFacts;
pub use memory::discard;
pub use objects::{
    ChangedObjects, ClaimedVolume, LocalObject, LocalObjects, NoObjects, ObjectError, ObjectSource, Objects,
    ServiceFacts, ServicePortFacts, SourceError, SourceKind, SourceObject, Token, TokenRequest, Wanted,
};
pub use prepare::{PrepareError, PreparedVolume};
pub use refresh::{FillReport, FillReports, PodVolumes, VolumeKeeper};
pub use size_limit::exceeded;
