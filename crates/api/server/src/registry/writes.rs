//! Creating and changing objects.

use pulselet_store::{Expect, StoredObject, Swap, Swapped};
use serde_json::{Value, json};

use super::services::{self, Taken};
use super::{Registry, Written, restriction};
use crate::patch::managed::{self, FieldWriter};
use crate::patch::{self, Patch};
use crate::registry::decode::{Decoded, decode};
use crate::registry::object::{self, Object};
use crate::registry::resource::{Endpoint, ObjectPath, ResourceKind};
use crate::registry::strategies::{Admitted, AfterCreate, Update};
use crate::rest::body::Parsed;
use crate::rest::query::WriteOptions;
use crate::rest::status::{ApiError, StatusReason};

/// How many names are tried for one `generateName`.
const MAX_NAME_ATTEMPTS: usize = 8;
/// How often a change without a condition is computed anew because someone else was faster.
const MAX_CHANGE_ATTEMPTS: usize = 16;

/// What a computed change does to the stored object.
pub(super) struct ChangedObject {
    pub(super) object: Object,
    pub(super) warnings: Vec<String>,
}

impl Registry {
    /// Creates an object from a body.
    pub(crate) async fn create(
        &self,
        path: &ObjectPath,
        body: Parsed,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let decoded = decode(path.endpoint, body, options.field_validation, self.rules)?;
        self.create_decoded(path, decoded, options, FieldWriter::Update)
            .await
    }

    pub(super) async fn create_decoded(
        &self,
        path: &ObjectPath,
        decoded: Decoded,
        options: &WriteOptions,
        writer: FieldWriter<'_>,
    ) -> Result<Written, ApiError> {
        let Decoded {
            mut object,
            mut warnings,
        } = decoded;
        place(&mut object, path)?;
        if let Some(node) = &options.node {
            self.restrict_create(node, path, &object).await?;
        }
        let strategy = path.endpoint.kind.strategy();
        strategy.prepare_create(&mut object, options);
        check_grants(path, None, &object, options)?;
        if !object.resource_version().is_empty() {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generated = object.name().is_empty() && !object.generate_name().is_empty();
        let mut attempts = 0;
        let (object, entry) = loop {
            attempts += 1;
            let taken = self.taken(path.endpoint.kind, options.dry_run).await?;
            let mut object = object.clone();
            if generated {
                object.set_meta("name", json!(object::generate_name(object.generate_name())));
            }
            let admitted = self.admit_new(path.endpoint, object, taken.as_ref())?;
            let mut object = admitted.object;
            managed::record(None, &mut object, path, options, writer);
            match self
                .insert(path.endpoint, object, options.dry_run, taken.as_ref())
                .await
            {
                Err(error)
                    if error.reason == StatusReason::AlreadyExists
                        && generated
                        && attempts < MAX_NAME_ATTEMPTS => {}
                // Another server was faster with a Service.
                Err(error)
                    if error.reason == StatusReason::Conflict
                        && taken.is_some()
                        && attempts < MAX_CHANGE_ATTEMPTS =>
                {
                    drop(taken);
                    services::yield_turn().await;
                }
                Err(error) => return Err(error),
                Ok(inserted) => {
                    warnings.extend(admitted.warnings);
                    break inserted;
                }
            }
        };
        match strategy.after_create() {
            AfterCreate::NamespaceDefaults if !options.dry_run => {
                self.create_namespace_defaults(object.name()).await?;
            }
            AfterCreate::NamespaceDefaults | AfterCreate::Nothing => {}
        }
        let mut written = Written {
            object,
            entry,
            warnings,
            created: true,
        };
        if !options.dry_run {
            self.tell_unattended(path.endpoint.kind, &mut written).await;
        }
        Ok(written)
    }

    /// Sets the fields of a new object that only the server sets, and checks the object.
    fn admit_new(
        &self,
        endpoint: Endpoint,
        mut object: Object,
        taken: Option<&Taken<'_>>,
    ) -> Result<Admitted, ApiError> {
        stamp(&mut object);
        let name = object.name().to_owned();
        let mut admitted = endpoint
            .kind
            .strategy()
            .admit_create(endpoint.kind, object, self.rules)
            .map_err(|refusal| refusal.into_error(endpoint, &name))?;
        if let Some(taken) = taken {
            services::assign(&mut admitted.object, None, taken)
                .map_err(|errors| ApiError::invalid(endpoint, &name, &errors))?;
        }
        admitted.object.set_type(endpoint.kind.storage());
        Ok(admitted)
    }

    /// Stores a new object, in a namespace that is there and stays.
    async fn insert(
        &self,
        endpoint: Endpoint,
        mut object: Object,
        dry_run: bool,
        taken: Option<&Taken<'_>>,
    ) -> Result<(Object, Option<StoredObject>), ApiError> {
        let kind = endpoint.kind;
        let name = object.name().to_owned();
        let namespace = kind.info().namespaced.then(|| object.namespace().to_owned());
        for attempt in 0..MAX_CHANGE_ATTEMPTS {
            let mut guards: Vec<_> = taken.and_then(Taken::guard).into_iter().collect();
            if let Some(namespace) = &namespace {
                // The guard fails where what is remembered no longer holds.
                let remembered = self
                    .open_namespaces
                    .guard(namespace)
                    .filter(|_| attempt == 0 && !dry_run);
                let guard = match remembered {
                    Some(guard) => guard,
                    None => self.open_namespace(endpoint, namespace, &name).await?,
                };
                guards.push(guard);
            }
            let key = kind.key(namespace.as_deref(), &name);
            if dry_run {
                let (found, _) = self.store.get(&key).await?;
                return match found {
                    Some(_) => Err(ApiError::already_exists(endpoint, &name)),
                    None => Ok((object, None)),
                };
            }
            let value = object.encode();
            let swap = Swap {
                key: key.clone(),
                expect: Expect::Absent,
                value: Some(value.clone()),
                guards,
            };
            match self.swap(swap).await? {
                Swapped::Done(revision) => {
                    object.set_meta("resourceVersion", json!(revision.to_string()));
                    return Ok((object, Some(StoredObject::written(key, value, revision))));
                }
                Swapped::Conflict(_) => return Err(ApiError::already_exists(endpoint, &name)),
                Swapped::GuardFailed { key } if services::is_turn(&key) => {
                    return Err(ApiError::modified(endpoint, &name));
                }
                // The namespace was changed meanwhile; look again whether it still takes objects.
                Swapped::GuardFailed { .. } => {}
            }
        }
        Err(ApiError::modified(endpoint, &name))
    }

    /// Replaces the status of an object that is still the one it was computed from; otherwise that is a conflict.
    pub(crate) async fn set_status(
        &self,
        path: &ObjectPath,
        computed_from: &Object,
        status: Value,
    ) -> Result<(), ApiError> {
        let set = |old: &Object| {
            if old.resource_version() != computed_from.resource_version() {
                return Err(ApiError::modified(path.endpoint, old.name()));
            }
            let mut object = old.clone();
            object.value_mut()["status"] = status.clone();
            Ok(ChangedObject {
                object,
                warnings: Vec::new(),
            })
        };
        self.change(path, false, set).await.map(drop)
    }

    /// Creates an object of the server's own, unless there is one of its name.
    pub(crate) async fn ensure(&self, kind: ResourceKind, object: Object) -> Result<(), ApiError> {
        self.ensure_with(kind, object, None).await
    }

    pub(super) async fn ensure_with(
        &self,
        kind: ResourceKind,
        object: Object,
        taken: Option<&Taken<'_>>,
    ) -> Result<(), ApiError> {
        let endpoint = kind.storage();
        let object = self.admit_new(endpoint, object, taken)?.object;
        match self.insert(endpoint, object, false, taken).await {
            Err(error) if error.reason == StatusReason::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    /// Replaces an object, or the part of it that a subresource is about.
    pub(crate) async fn update(
        &self,
        path: &ObjectPath,
        body: Parsed,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let decoded = decode(path.endpoint, body, options.field_validation, self.rules)?;
        let mut sent = decoded.object;
        place(&mut sent, path)?;
        let changed = self
            .change_with(path, options.dry_run, |old, taken| {
                let changed = self.admit(path, old, sent.clone(), options, FieldWriter::Update)?;
                keep_assigned(path, old, changed, taken)
            })
            .await;
        let missing = matches!(&changed, Err(error) if error.reason == StatusReason::NotFound);
        if missing && path.endpoint.info().create_on_update && path.subresource.is_none() {
            let decoded = Decoded {
                object: sent,
                warnings: decoded.warnings,
            };
            return self
                .create_decoded(path, decoded, options, FieldWriter::Update)
                .await;
        }
        let mut written = changed?;
        written.warnings.splice(0..0, decoded.warnings);
        Ok(written)
    }

    /// Changes an object by a patch.
    pub(crate) async fn patch(
        &self,
        path: &ObjectPath,
        wanted: &Patch,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let endpoint = path.endpoint;
        let writer = match wanted {
            Patch::Apply(config) => FieldWriter::Apply(config),
            Patch::Json(_) | Patch::Merge(_) | Patch::Strategic(_) => FieldWriter::Update,
        };
        let changed = self
            .change_with(path, options.dry_run, |old, taken| {
                let shown = self.present(endpoint, old.clone());
                let patched = patch::apply(wanted, endpoint, &shown, options)?;
                let body = Parsed::from(patched);
                let decoded = decode(endpoint, body, options.field_validation, self.rules)?;
                let mut sent = decoded.object;
                place(&mut sent, path)?;
                let mut change = self.admit(path, old, sent, options, writer)?;
                change.warnings.splice(0..0, decoded.warnings);
                keep_assigned(path, old, change, taken)
            })
            .await;
        match (&changed, wanted) {
            (Err(error), Patch::Apply(config))
                if error.reason == StatusReason::NotFound && path.subresource.is_none() =>
            {
                let parsed = Parsed::from(config.clone());
                let decoded = decode(endpoint, parsed, options.field_validation, self.rules)?;
                self.create_decoded(path, decoded, options, writer).await
            }
            _ => changed,
        }
    }

    /// Checks a changed object against the stored one.
    fn admit(
        &self,
        path: &ObjectPath,
        old: &Object,
        new: Object,
        options: &WriteOptions,
        writer: FieldWriter<'_>,
    ) -> Result<ChangedObject, ApiError> {
        let (endpoint, name) = (path.endpoint, old.name());
        let version = new.resource_version();
        if !version.is_empty() && version != "0" && version != old.resource_version() {
            return Err(ApiError::modified(endpoint, name));
        }
        if !new.uid().is_empty() && new.uid() != old.uid() {
            let why = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                new.uid(),
                old.uid()
            );
            return Err(ApiError::conflict(endpoint, name, &why));
        }
        let update = Update {
            subresource: path.subresource,
            old,
            new,
        };
        let strategy = endpoint.kind.strategy();
        let admitted = strategy
            .admit_update(endpoint.kind, update, self.rules)
            .map_err(|refusal| refusal.into_error(endpoint, name))?;
        let mut object = admitted.object;
        if let Some(node) = &options.node {
            restriction::check_update(node, path, old, &object)?;
        }
        check_grants(path, Some(old), &object, options)?;
        object.set_type(endpoint.kind.storage());
        managed::record(Some(old), &mut object, path, options, writer);
        Ok(ChangedObject {
            object,
            warnings: admitted.warnings,
        })
    }

    /// Computes a change on the newest version until it can be made on the version it was computed from.
    pub(super) async fn change(
        &self,
        path: &ObjectPath,
        dry_run: bool,
        mut compute: impl FnMut(&Object) -> Result<ChangedObject, ApiError> + Send,
    ) -> Result<Written, ApiError> {
        for _ in 0..MAX_CHANGE_ATTEMPTS {
            if let Some(written) = self.try_change(path, dry_run, None, &mut compute).await? {
                return Ok(written);
            }
        }
        let name = path.name.as_deref().unwrap_or_default();
        Err(ApiError::modified(path.endpoint, name))
    }

    /// As [`Self::change`]; what gives a Service its address is told what others have.
    async fn change_with(
        &self,
        path: &ObjectPath,
        dry_run: bool,
        mut compute: impl FnMut(&Object, Option<&Taken<'_>>) -> Result<ChangedObject, ApiError> + Send,
    ) -> Result<Written, ApiError> {
        for _ in 0..MAX_CHANGE_ATTEMPTS {
            let taken = self.taken(path.endpoint.kind, dry_run).await?;
            let taken = taken.as_ref();
            let changed = self
                .try_change(path, dry_run, taken, |old| compute(old, taken))
                .await?;
            if let Some(written) = changed {
                return Ok(written);
            }
        }
        let name = path.name.as_deref().unwrap_or_default();
        Err(ApiError::modified(path.endpoint, name))
    }

    /// `None` if somebody else changed the object meanwhile.
    async fn try_change(
        &self,
        path: &ObjectPath,
        dry_run: bool,
        taken: Option<&Taken<'_>>,
        mut compute: impl FnMut(&Object) -> Result<ChangedObject, ApiError> + Send,
    ) -> Result<Option<Written>, ApiError> {
        let entry = self.entry(path).await?;
        let old = Object::from_entry(&entry)?;
        let ChangedObject { object, warnings } = compute(&old)?;
        let replaced = self.replace(path, &entry, object, dry_run, taken).await?;
        Ok(replaced.map(|(object, entry)| Written {
            object,
            entry,
            warnings,
            created: false,
        }))
    }

    /// Stores a changed object; `None` if somebody else changed it meanwhile.
    async fn replace(
        &self,
        path: &ObjectPath,
        entry: &StoredObject,
        mut object: Object,
        dry_run: bool,
        taken: Option<&Taken<'_>>,
    ) -> Result<Option<(Object, Option<StoredObject>)>, ApiError> {
        let value = object.encode();
        // The last finalizer of an object whose end has begun is gone: so is the object.
        let ended = super::deletion::has_ended(path.endpoint.kind, &object);
        let unchanged = value == entry.value;
        if dry_run || (unchanged && !ended) {
            object.set_meta("resourceVersion", json!(entry.revision.to_string()));
            return Ok(Some((object, None)));
        }
        let value = Some(value).filter(|_| !ended);
        let swap = Swap {
            key: entry.key.clone(),
            expect: Expect::Revision(entry.revision),
            value: value.clone(),
            guards: taken.and_then(Taken::guard).into_iter().collect(),
        };
        match self.swap(swap).await? {
            Swapped::Done(revision) => {
                object.set_meta("resourceVersion", json!(revision.to_string()));
                let written = |value| StoredObject::written(entry.key.clone(), value, revision);
                Ok(Some((object, value.map(written))))
            }
            Swapped::Conflict(_) | Swapped::GuardFailed { .. } => Ok(None),
        }
    }
}

/// A changed Service keeps the addresses and ports that it has, and gets those that it lacks.
fn keep_assigned(
    path: &ObjectPath,
    old: &Object,
    mut changed: ChangedObject,
    taken: Option<&Taken<'_>>,
) -> Result<ChangedObject, ApiError> {
    if let (Some(taken), None) = (taken, path.subresource) {
        services::assign(&mut changed.object, Some(old), taken)
            .map_err(|errors| ApiError::invalid(path.endpoint, old.name(), &errors))?;
    }
    Ok(changed)
}

/// Whether the writer may grant what the object grants.
fn check_grants(
    path: &ObjectPath,
    old: Option<&Object>,
    new: &Object,
    options: &WriteOptions,
) -> Result<(), ApiError> {
    let Some(limit) = &options.grants else {
        return Ok(());
    };
    let checked = limit.check(path.endpoint.kind, old, new);
    checked.map_err(|why| ApiError::forbidden(path.endpoint, new.name(), &why))
}

/// Makes the object's namespace and name those of the path, unless it says otherwise.
fn place(object: &mut Object, path: &ObjectPath) -> Result<(), ApiError> {
    match (&path.namespace, object.namespace()) {
        (Some(namespace), "") => object.set_meta("namespace", json!(namespace)),
        (Some(namespace), found) if found != namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        (Some(_), _) => {}
        (None, _) => object.set_meta("namespace", Value::Null),
    }
    match (&path.name, object.name()) {
        (Some(name), "") => object.set_meta("name", json!(name)),
        (Some(name), found) if found != name => {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({found}) does not match the name on the URL ({name})"
            )));
        }
        (Some(_) | None, _) => {}
    }
    Ok(())
}

/// Sets the metadata that only the server sets, and removes what a client may not set.
fn stamp(object: &mut Object) {
    object.set_meta("uid", json!(object::new_uid()));
    object.set_meta("creationTimestamp", object::now());
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "selfLink",
    ] {
        object.set_meta(field, Value::Null);
    }
}
