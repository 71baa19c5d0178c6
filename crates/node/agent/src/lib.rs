//! The node agent: pods from files or requests, run by a runtime, watched by probes, remembered on disk.
//!
//! [`Node::start`] makes a node and returns a [`NodeHandle`]. Inside, one task (the agent) owns every pod: it feeds the
//! engine with what happens and has the engine's actions carried out by jobs. Around it are a thread that writes the
//! store, a socket for the command line, an endpoint for monitoring, and a watcher of manifests.
//!
//! Where things are: `agent` is the one task and `jobs` what it has others do; `container_config` turns a manifest into what
//! a runtime is asked for; `pod` knows one pod; `state` outlives the agent; `eviction` says
//! who goes when the machine runs out of something; `endpoints` answer and `publish` says; `spans` say
//! whose work a log line is about; `node` and `handle` put them together.
//!
//! What always holds:
//! - an agent can die at any instant: the next one goes on with every probe run, deadline and restart count;
//! - a pod's state is on disk before an action that follows from it begins;
//! - every queue, retry and number of tasks has a bound with a name.
//!
//! Left to others: what a manifest means (`plan`), what happens when (`engine`), how a probe is made (`probe`), how a
//! container is run (`runtime`), what is in a volume (`volume`), and every word to a person (`cli`).

mod agent;
mod container_config;
mod endpoints;
mod eviction;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod jobs;
mod kept_logs;
mod log_file;
mod manifests;
mod node;
mod pod;
mod publish;
pub mod spans;
mod state;

pub use agent::{
    AddError, Added, AdoptError, How, Located, LogError, LogPlace, NoSuchPod, PodView, ProbeView, Shutdown,
    StreamError, UpdateError,
};
pub use endpoints::control;
pub use endpoints::health::MonitoringPage;
pub use eviction::{Level, MachineSignals, PressureConditions, PressureReadings, PressureSignals};
pub use handle::{Gone, NodeHandle, StartError, StopError, kept_history};
pub use kept_logs::{KeptLog, kept_logs};
pub use log_file::LogFile;
pub use manifests::WatchError;
pub use node::{Node, NodeOptions, NodeStartError};
pub use pod::identity::{Origin, pod_name_of, uid_of};
pub use publish::feed::{Feed, FeedChange, NodeEvent, PodEvent};
pub use publish::lines::{FULL_BACKLOG, GUEST_BACKLOG, LineHub, Lines, PodLine};
pub use publish::notify::ServiceManager;
pub use pulselet_plan::NodeDuties;
pub use pulselet_plan::duties::ShutdownPeriods;
pub use pulselet_volume::{
    ChangedObjects, ClaimedVolume, LocalObject, LocalObjects, NoObjects, NodeFacts, ObjectSource,
    ServiceFacts, ServicePortFacts, SourceError, SourceKind, SourceObject, Token, TokenRequest,
};
pub use state::handed_objects::KeepObjectsError;
pub use state::identity::DirectoryIdentity;
pub use state::layout::{DataDir, Layout, LayoutError};
pub use state::stopped::SaveStoppedError;
pub use state::store::{EventRow, NodeStoreError};
