//! The rules of the kinds: one strategy per kind, and all of them here.
//!
//! Reading and writing objects is the same for every kind; what differs is asked of its [`Strategy`]: defaults, validation,
//! update rules, what reads show, how its objects end. The catalogue (`resource`, `plain`) says which strategy a kind has. No
//! other part of the server asks which kind it has in order to apply a rule.

mod access;
mod data;
mod event;
mod lease;
mod metadata;
mod namespace;
mod node;
mod plain;
mod pod;
mod revision;
mod service;
mod workload;

use std::fmt::Debug;

use pulselet_model::{CauseReason, FieldError, GateSet, Profile};
use serde_json::Value;

use super::object::Object;
use super::resource::{Endpoint, ResourceKind, Subresource};
use crate::rest::query::WriteOptions;
use crate::rest::status::ApiError;

pub(super) use access::{
    CERTIFICATE_SIGNING_REQUEST, CLUSTER_BINDING, CLUSTER_ROLE, NAMESPACED_BINDING, NAMESPACED_ROLE,
};
pub(super) use plain::{ENDPOINT_SLICE, PLAIN, PRIORITY_CLASS, RESOURCE_CLAIM, RUNTIME_CLASS, STORAGE_CLASS};
pub(super) use revision::REVISION;
pub(super) use service::{SERVICE, has_node_ports};
pub(super) use workload::Workload;

/// Which rules for Pods the server was configured with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub profile: Profile,
    pub gates: GateSet,
}

/// A changed object, ready to be stored.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
}

/// Why an object was not admitted.
#[derive(Debug)]
pub(crate) enum Refusal {
    Invalid(Vec<FieldError>),
    /// The object does not decode as its kind, which a patch can bring about.
    Undecodable(String),
}

impl Refusal {
    pub(crate) fn into_error(self, endpoint: Endpoint, name: &str) -> ApiError {
        match self {
            Self::Invalid(errors) => ApiError::invalid(endpoint, name, &errors),
            Self::Undecodable(why) => super::decode::cannot_handle(endpoint, &why),
        }
    }
}

/// A change of a stored object.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    /// The part that the change is about; `None` if it is the whole object.
    pub(crate) subresource: Option<Subresource>,
    pub(crate) old: &'a Object,
    pub(crate) new: Object,
}

/// What the objects of a kind get from the server, of which no two may get the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocation {
    Nothing,
    /// Addresses and ports of Services.
    ServiceAddresses,
}

/// What the server itself does after an object was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterCreate {
    Nothing,
    /// The objects that every namespace has.
    NamespaceDefaults,
}

/// The rules of a kind.
pub(crate) trait Strategy: Debug + Sync {
    /// Whether a type of the model writes its objects, with all that this implies for their form.
    fn is_typed(&self) -> bool {
        false
    }

    /// An object of another version of the kind, in the version that is stored.
    fn to_stored(&self, value: Value) -> Value {
        value
    }

    /// A stored object in another version of the kind.
    fn to_served(&self, value: Value) -> Value {
        value
    }

    /// Sets what a new object says of its author.
    fn prepare_create(&self, _object: &mut Object, _options: &WriteOptions) {}

    /// Fills in and checks a new object.
    fn admit_create(&self, kind: ResourceKind, object: Object, rules: Rules) -> Result<Admitted, Refusal>;

    /// Fills in and checks a changed object.
    fn admit_update(&self, kind: ResourceKind, update: Update<'_>, rules: Rules)
    -> Result<Admitted, Refusal>;

    fn allocation(&self) -> Allocation {
        Allocation::Nothing
    }

    fn after_create(&self) -> AfterCreate {
        AfterCreate::Nothing
    }

    /// Whether reads show objects just as they are stored.
    fn is_shown_whole(&self, _rules: Rules) -> bool {
        true
    }

    /// An object as reads show it while some gates are off.
    fn hide(&self, object: Object, _rules: Rules) -> Object {
        object
    }

    /// Whether the object of a name may be deleted.
    fn may_delete(&self, _name: &str) -> Result<(), &'static str> {
        Ok(())
    }

    /// Seconds between the begin of an object's end and the end; `asked` is what the deletion asks for.
    fn grace(&self, _object: &Object, _asked: Option<i64>) -> i64 {
        0
    }

    /// Whether an object whose end has begun waits for others.
    fn is_held(&self, object: &Object) -> bool {
        object.has_finalizers()
    }

    /// Shows in an object that its end has begun, beyond its metadata.
    fn mark_ending(&self, _object: &mut Object) {}
}

impl ResourceKind {
    /// The rules of the kind.
    pub(crate) const fn strategy(self) -> &'static dyn Strategy {
        match self {
            Self::ConfigMap => &data::CONFIG_MAP,
            Self::Event => &event::EVENT,
            Self::Lease => &lease::LEASE,
            Self::Namespace => &namespace::NAMESPACE,
            Self::Node => &node::NODE,
            Self::Pod => &pod::POD,
            Self::Secret => &data::SECRET,
            Self::ServiceAccount => &PLAIN,
            Self::Plain(kind) => kind.row().strategy,
        }
    }
}

/// Whether reads of the kind must be rewritten, or can be served as stored.
pub(crate) fn served_as_stored(endpoint: Endpoint, rules: Rules) -> bool {
    endpoint == endpoint.kind.storage() && endpoint.kind.strategy().is_shown_whole(rules)
}

/// An object as the endpoint shows it.
pub(crate) fn present(endpoint: Endpoint, object: Object, rules: Rules) -> Object {
    let strategy = endpoint.kind.strategy();
    let mut object = if strategy.is_shown_whole(rules) {
        object
    } else {
        strategy.hide(object, rules)
    };
    if endpoint != endpoint.kind.storage() {
        let value = strategy.to_served(object.into_value());
        object = Object::new(value).expect("another version of an object is an object");
    }
    object.set_type(endpoint);
    object
}

/// The object, unless something is wrong with it.
fn finish(object: Object, errors: Vec<FieldError>) -> Result<Admitted, Refusal> {
    if errors.is_empty() {
        let warnings = Vec::new();
        Ok(Admitted { object, warnings })
    } else {
        Err(Refusal::Invalid(errors))
    }
}

/// An Invalid error in upstream's form.
pub(crate) fn invalid(field: &str, value: &Value, detail: &str) -> FieldError {
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::Invalid,
        message: format!("Invalid value: {value}: {detail}"),
    }
}

fn required(field: &str, detail: &str) -> FieldError {
    let message = if detail.is_empty() {
        "Required value".to_owned()
    } else {
        format!("Required value: {detail}")
    };
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::Required,
        message,
    }
}
