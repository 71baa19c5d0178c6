//! Pods as Kubernetes serves them.
//!
//! This crate owns what a Pod *is* and which Pods are acceptable: the wire types, decoding with positions, the
//! feature gates that hide or drop fields, defaulting, validation, update rules and warnings. It does no IO, starts
//! no task and reads no clock; everything is a function from values to values.
//!
//! What it leaves to others: what a Pod *does* (`pulselet-engine`, through `pulselet-plan`), storing and
//! serving Pods, and reading files.

mod admission;
mod annotation;
mod decode;
mod defaults;
mod dropping;
mod field;
pub mod gates;
pub mod image;
mod manifest;
mod object_defaults;
mod objects;
pub mod pod;
pub mod probe;
mod qos;
mod requests;
mod resize;
pub mod status;
mod template;
mod validation;
mod warning;
mod workload;

/// The Kubernetes types that we use as they are: volumes, security contexts, affinity, metadata.
pub use k8s_openapi as openapi;
/// Decoding, and the fields that exist: `pulselet-schema`.
pub use pulselet_schema::document::{
    DecodeError, DecodeErrors, Document, Documents, MAX_DOCUMENT_BYTES, Position, decode_documents,
};
pub use pulselet_schema::{Profile, quantity};

pub use admission::{
    Admission, admit_create, admit_ephemeral_containers, admit_local, admit_resize, admit_update,
};
pub use annotation::{PROBES_ANNOTATION, ProbesAnnotationError, apply_probes_annotation, probes_annotation};
pub use decode::{
    DecodedFileObject, DecodedObject, DecodedPod, FileObject, FileReader, ManifestObject, decode_file_object,
    decode_object, decode_pod,
};
pub use dropping::{gates_in_use, hide_disabled, keep_accepted};
pub use field::{CauseReason, FieldError};
pub use gates::{Gate, GateError, GateSet};
pub use manifest::{CompanionKind, admit_companion, admit_file_workload};
pub use object_defaults::fill as fill_defaults;
pub use objects::{
    MAX_DATA_BYTES, NODE_PORTS, admit_config_map, admit_secret, data_key_error, data_size_error,
};
pub use pod::{Container, ContainerPort, EphemeralContainer, Pod, PodOs, PodSpec};
pub use probe::{
    ExecAction, GrpcAction, HttpGetAction, HttpHeader, IntOrString, Lifecycle, LifecycleHandler, Probe,
    SleepAction, TcpSocketAction,
};
pub use qos::class as qos_class;
pub use requests::{ResourceTotals, Shortage, pod_limits, pod_requests};
pub use resize::{RESIZABLE, keep_resources, same_resources};
pub use status::{ContainerStatusFields, PodStatus};
pub use validation::{NameRule, validate_metadata};
pub use warning::Warning;
pub use workload::{
    WorkloadAdmission, WorkloadError, WorkloadKind, admit_workload_create, admit_workload_status,
    admit_workload_update, hide_revision_data, hide_workload, keep_hidden_revision_data,
    revision_gates_in_use, workload_gates_in_use, workload_pod,
};
