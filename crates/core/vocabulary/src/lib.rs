//! Words that every part of Pulselet speaks, each formatted and parsed in one place.
//!
//! - [`Signal`]: a signal by the name that Kubernetes gives it, and what the kernel does with it by default;
//! - [`PodName`]: namespace and name of a pod, written `namespace/name`;
//! - [`Severity`]: whether a Kubernetes event is normal or a warning;
//! - [`KUBERNETES_VERSION`]: the Kubernetes release that all parts are like;
//! - [`uid`]: the form of a uid;
//! - [`exit_code`]: the exit codes that are made up rather than chosen by a program.
//!
//! A type belongs here if the API, the engine and a runtime all have to agree on it. There is no behaviour here: what
//! a part does with a word is that part's business.

pub mod exit_code;
mod pod_name;
mod release;
mod severity;
mod signal;
mod uid;

pub use pod_name::{DEFAULT_NAMESPACE, ParsePodNameError, PodName};
pub use release::{KUBERNETES_MINOR, KUBERNETES_VERSION};
pub use severity::Severity;
pub use signal::{DefaultAction, ParseSignalError, Signal};
pub use uid::uid;
