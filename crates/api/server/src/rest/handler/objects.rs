//! Requests about objects: reads, watches, writes, and what a Pod's node answers itself.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{Handler, REQUEST_TIMEOUT, header, late, read_body};
use crate::access::{Access, GrantLimit, Identity};
use crate::metrics::OpenStream;
use crate::node_proxy;
use crate::patch;
use crate::registry::attendance::Attending;
use crate::registry::object::Object;
use crate::registry::resource::{GroupVersion, ObjectPath, ResourceKind, Subresource};
use crate::registry::scale;
use crate::registry::selector::Selector;
use crate::registry::{Deleted, Written};
use crate::rest::Body;
use crate::rest::accept::{self, Form, WireFormat};
use crate::rest::answer::{
    add_warnings, body_answer, bytes_answer, full, json_answer, success, value_answer,
};
use crate::rest::body::{self, Encoding, Parsed};
use crate::rest::query::{DeleteOptions, ListOptions, Query, WriteOptions};
use crate::rest::render::{object_view, render_list, render_one};
use crate::rest::room::{Load, Permit};
use crate::rest::route::Verb;
use crate::rest::status::{ApiError, StatusReason};
use crate::watch::{self, Session};
use pulselet_schema::protobuf;

/// A request that has been read and understood.
struct Call<'a> {
    identity: &'a Identity,
    path: &'a ObjectPath,
    query: &'a Query,
    /// `None` if the request is about one object.
    list: Option<&'a ListOptions>,
    headers: &'a HeaderMap,
    /// What the caller may grant; `None` if that is everything, or does not matter here.
    grants: Option<GrantLimit>,
    /// Empty for requests that are passed on.
    body: Bytes,
}

/// A request with its body, and everything that its answer needs.
struct ObjectWork {
    handler: Arc<Handler>,
    identity: Identity,
    verb: Verb,
    path: ObjectPath,
    query: Query,
    list: Option<ListOptions>,
    headers: HeaderMap,
    body: Bytes,
    permit: Permit,
}

impl ObjectWork {
    async fn answer(self) -> Result<Response<Body>, ApiError> {
        let Self {
            handler,
            identity,
            verb,
            path,
            query,
            list,
            headers,
            body,
            permit,
        } = self;
        let call = Call {
            identity: &identity,
            path: &path,
            query: &query,
            list: list.as_ref(),
            headers: &headers,
            grants: handler.grants(&identity, verb, &path).await?,
            body,
        };
        let answer = handler.serve(verb, call, permit).await?;
        handler.follow_up(verb, &path, &query, answer.status()).await;
        Ok(answer)
    }
}

impl Handler {
    pub(super) async fn objects(
        self: &Arc<Self>,
        identity: Identity,
        path: ObjectPath,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let query = Query::parse(request.uri().query().unwrap_or_default())?;
        let watch = query.flag("watch")?.unwrap_or(false);
        let verb = Verb::of(request.method(), &path, watch)?;
        check_served(verb, &path)?;
        if is_stream(&path) {
            return self.stream(&identity, &path, verb, &query, request).await;
        }
        let list = list_options(verb, &path, &query)?;
        let access = Access {
            verb,
            path: &path,
            selector: list.as_ref().map(|list| &list.selector),
        };
        self.authorizer.authorize_caller(&identity, access).await?;
        let permit = self.room.take(&identity, load(verb))?;
        let (parts, incoming) = request.into_parts();
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let admitting = async {
            self.authorizer.authorize(&identity, access).await?;
            read_body(incoming).await
        };
        let body = timeout_at(deadline, admitting).await.map_err(|_| late())??;
        let size = body.len();
        let work = ObjectWork {
            handler: Arc::clone(self),
            identity,
            verb,
            path,
            query,
            list,
            headers: parts.headers,
            body,
            permit,
        };
        let answering = self.large_bodies.run(size, work.answer());
        timeout_at(deadline, answering)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// What a caller may grant by what they write.
    async fn grants(
        &self,
        identity: &Identity,
        verb: Verb,
        path: &ObjectPath,
    ) -> Result<Option<GrantLimit>, ApiError> {
        let kind = path.endpoint.kind;
        if !verb.mutates() {
            return Ok(None);
        }
        if kind == ResourceKind::CERTIFICATE_SIGNING_REQUEST
            && path.subresource == Some(Subresource::Approval)
        {
            self.check_approver(identity, path).await?;
        }
        if path.endpoint.group_version == GroupVersion::RbacV1 {
            self.authorizer.grant_limit(identity).await
        } else {
            Ok(None)
        }
    }

    /// Whether a caller may approve of requests to the signer that this one names.
    async fn check_approver(&self, identity: &Identity, path: &ObjectPath) -> Result<(), ApiError> {
        let whole = ObjectPath {
            subresource: None,
            ..path.clone()
        };
        let request = self.registry.get(&whole).await?;
        let signer = request.text("/spec/signerName");
        if self.authorizer.may_approve(identity, signer).await? {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(ApiError::forbidden(path.endpoint, request.name(), &why))
    }

    /// Does what follows from a change at once.
    async fn follow_up(&self, verb: Verb, path: &ObjectPath, query: &Query, code: StatusCode) {
        let is_dry = query.get("dryRun").is_some_and(|value| !value.is_empty());
        if !verb.mutates() || is_dry || !code.is_success() {
            return;
        }
        let kind = path.endpoint.kind;
        let done = if kind == ResourceKind::CLUSTER_ROLE {
            self.registry.gather_roles().await
        } else if kind == ResourceKind::CERTIFICATE_SIGNING_REQUEST {
            self.sign_requests(path.name.as_deref()).await
        } else {
            Ok(())
        };
        if let Err(error) = done {
            tracing::warn!(%error, kind = path.endpoint.info().kind, "what follows from a change was not done");
        }
    }

    /// Signs what can be signed: the request of this name, or all, of which one is new.
    async fn sign_requests(&self, name: Option<&str>) -> Result<(), ApiError> {
        if let Some(name) = name {
            return self.signer.process(name, &self.authorizer).await;
        }
        self.signer.clean().await?;
        let (requests, _) = self
            .registry
            .all(ResourceKind::CERTIFICATE_SIGNING_REQUEST, None)
            .await?;
        for request in requests {
            self.signer.process(request.name(), &self.authorizer).await?;
        }
        Ok(())
    }

    async fn serve(&self, verb: Verb, call: Call<'_>, permit: Permit) -> Result<Response<Body>, ApiError> {
        match verb {
            Verb::Get => self.get(&call).await,
            Verb::List => self.list(&call).await,
            Verb::Watch => self.watch(&call, permit).await,
            Verb::Create => self.create(&call).await,
            Verb::Update => self.update(&call).await,
            Verb::Patch => self.patch(&call).await,
            Verb::Delete => self.delete(&call).await,
            Verb::DeleteCollection => self.delete_collection(&call).await,
        }
    }

    async fn get(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let form = call.form()?;
        let entry = self.registry.read(call.path).await?;
        if call.path.subresource == Some(Subresource::Scale) {
            return scale_answer(call, &Object::from_entry(&entry)?);
        }
        let shown = render_one(&self.registry, call.path.endpoint, form, &entry)?;
        Ok(bytes_answer(StatusCode::OK, shown, form.wire))
    }

    async fn list(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let options = call.list_options()?;
        let (form, endpoint) = (call.form()?, call.path.endpoint);
        let namespace = call.path.namespace.as_deref();
        let listed = self.registry.list(endpoint.kind, namespace, options).await?;
        let damaged = listed.damaged.join(", ");
        if !damaged.is_empty() && call.identity.node().is_some() {
            // A node ends pods that a list does not have.
            return Err(ApiError::internal(format!(
                "stored objects are damaged: {damaged}; restore a backup, or delete them"
            )));
        }
        let list = render_list(&self.registry, endpoint, form, listed)?;
        let mut answer = body_answer(StatusCode::OK, list, form.wire);
        if !damaged.is_empty() {
            let warning = format!("damaged objects are left out, restore a backup or delete them: {damaged}");
            add_warnings(&mut answer, &[warning]);
        }
        Ok(answer)
    }

    async fn watch(&self, call: &Call<'_>, permit: Permit) -> Result<Response<Body>, ApiError> {
        let endpoint = call.path.endpoint;
        let options = call.list_options()?.clone();
        let namespace = call.path.namespace.as_deref();
        let form = call.form()?;
        let session = Session::start(&self.registry, endpoint, namespace, options, form).await;
        let user_agent = header(call.headers, &USER_AGENT);
        let attending = self
            .registry
            .attendance()
            .open(endpoint.kind, form.view, user_agent);
        let body = match session {
            Ok(session) => session_body(session, (permit, self.metrics.watch(call.path), attending)),
            // A watch from a revision that is gone starts and says so, as upstream has it.
            Err(error) if error.reason == StatusReason::Expired => {
                full(watch::error_frame(&error, form.wire))
            }
            Err(error) => return Err(error),
        };
        let mut answer = Response::new(body);
        let content_type = match form.wire {
            WireFormat::Json => "application/json",
            WireFormat::Protobuf => protobuf::WATCH_MEDIA_TYPE,
        };
        let content_type = HeaderValue::from_static(content_type);
        answer.headers_mut().insert(CONTENT_TYPE, content_type);
        Ok(answer)
    }

    async fn create(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let parsed = call.parse_body()?;
        let options = call.write_options()?;
        match call.path.subresource {
            Some(Subresource::Binding) => {
                self.registry
                    .bind(call.path, &parsed.value, options.dry_run)
                    .await?;
                value_answer(StatusCode::CREATED, &success(None), call.form()?.wire)
            }
            Some(Subresource::Token) => {
                let tokens = self.authenticator.service_accounts();
                let answer = tokens
                    .request(call.path, parsed.value, call.identity.node())
                    .await?;
                Ok(json_answer(StatusCode::CREATED, &answer))
            }
            Some(Subresource::Eviction) => {
                let delete = parsed.value.get("deleteOptions").cloned();
                let mut delete = DeleteOptions::parse(call.query, delete.or_else(|| Some(json!({}))))?;
                delete.dry_run |= options.dry_run;
                delete.node = options.node;
                self.registry.evict(call.path, &delete).await?;
                value_answer(StatusCode::CREATED, &success(None), call.form()?.wire)
            }
            Some(_) => Err(ApiError::method_not_allowed()),
            None => {
                let written = self.registry.create(call.path, parsed, &options).await?;
                self.written(call, written)
            }
        }
    }

    async fn update(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let parsed = call.parse_body()?;
        if call.path.subresource == Some(Subresource::Scale) {
            let options = call.write_options()?;
            let written = self
                .registry
                .update_scale(call.path, parsed.value, &options)
                .await?;
            return scale_answer(call, &written.object);
        }
        let written = self
            .registry
            .update(call.path, parsed, &call.write_options()?)
            .await?;
        self.written(call, written)
    }

    async fn patch(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let content_type = header(call.headers, &CONTENT_TYPE);
        let patch = patch::parse(Some(content_type), &call.body)?;
        if call.path.subresource == Some(Subresource::Scale) {
            let options = call.write_options()?;
            let written = self.registry.patch_scale(call.path, &patch, &options).await?;
            return scale_answer(call, &written.object);
        }
        let written = self
            .registry
            .patch(call.path, &patch, &call.write_options()?)
            .await?;
        self.written(call, written)
    }

    fn written(&self, call: &Call<'_>, written: Written) -> Result<Response<Body>, ApiError> {
        let code = if written.created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let (form, endpoint) = (call.form()?, call.path.endpoint);
        let mut answer = match &written.entry {
            // It need not be written out twice.
            Some(entry) if form.is_plain() && self.registry.shows_as_stored(endpoint) => bytes_answer(
                code,
                render_one(&self.registry, endpoint, form, entry)?,
                form.wire,
            ),
            _ => {
                let value = object_view(&self.registry, endpoint, form.view, written.object);
                value_answer(code, &value, form.wire)?
            }
        };
        add_warnings(&mut answer, &written.warnings);
        Ok(answer)
    }

    async fn delete(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let options = call.delete_options()?;
        let Deleted { object, gone } = self.registry.delete(call.path, &options).await?;
        let kind = call.path.endpoint.kind;
        if gone && kind != ResourceKind::Pod {
            return value_answer(StatusCode::OK, &success(Some((kind, &object))), call.form()?.wire);
        }
        let form = call.form()?;
        let value = object_view(&self.registry, call.path.endpoint, form.view, object);
        value_answer(StatusCode::OK, &value, form.wire)
    }

    async fn delete_collection(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let endpoint = call.path.endpoint;
        let list = call.list_options()?;
        let options = call.delete_options()?;
        let namespace = call.path.namespace.as_deref();
        let listed = self
            .registry
            .delete_collection(endpoint, namespace, list, &options)
            .await?;
        let form = call.form()?;
        let list = render_list(&self.registry, endpoint, form, listed)?;
        Ok(body_answer(StatusCode::OK, list, form.wire))
    }

    /// Passes a request on to the Pod's node.
    async fn stream(
        &self,
        identity: &Identity,
        path: &ObjectPath,
        verb: Verb,
        query: &Query,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let access = Access {
            verb,
            path,
            selector: None,
        };
        self.authorizer.authorize_caller(identity, access).await?;
        let permit = self.room.take(identity, Load::LongRunning)?;
        self.authorizer.authorize(identity, access).await?;
        let pod = self.registry.get(path).await?;
        let subresource = path.subresource.ok_or_else(ApiError::no_such_path)?;
        let target = node_proxy::target(
            &pod,
            subresource,
            query,
            request.uri().query().unwrap_or_default(),
        )?;
        let answer = self.nodes.forward(target, request, permit).await?;
        let code = answer.status();
        if subresource == Subresource::Log && (code.is_client_error() || code.is_server_error()) {
            return Err(node_proxy::complaint(answer).await);
        }
        Ok(answer)
    }
}

impl Call<'_> {
    fn list_options(&self) -> Result<&ListOptions, ApiError> {
        self.list.ok_or_else(ApiError::method_not_allowed)
    }

    fn form(&self) -> Result<Form, ApiError> {
        accept::form(header(self.headers, &ACCEPT), self.query)
    }

    fn write_options(&self) -> Result<WriteOptions, ApiError> {
        let mut options = WriteOptions::parse(self.query, header(self.headers, &USER_AGENT))?;
        options.node = self.identity.node().map(str::to_owned);
        options.caller = Some(self.identity.clone());
        options.grants.clone_from(&self.grants);
        Ok(options)
    }

    fn parse_body(&self) -> Result<Parsed, ApiError> {
        let content_type = Some(header(self.headers, &CONTENT_TYPE));
        body::parse(&self.body, Encoding::of(content_type)?)
    }

    fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let body = if self.body.is_empty() {
            None
        } else {
            Some(self.parse_body()?.value)
        };
        let mut options = DeleteOptions::parse(self.query, body)?;
        options.node = self.identity.node().map(str::to_owned);
        Ok(options)
    }
}

/// The options of a verb that is about many objects; `None` if it is about one.
fn list_options(verb: Verb, path: &ObjectPath, query: &Query) -> Result<Option<ListOptions>, ApiError> {
    let kind = path.endpoint.kind;
    match verb {
        Verb::List | Verb::DeleteCollection => ListOptions::parse(kind, query).map(Some),
        Verb::Watch => {
            let mut options = ListOptions::parse(kind, query)?;
            if let Some(name) = &path.name {
                options.selector = Selector::parse(kind, "", &format!("metadata.name={name}"))?;
            }
            Ok(Some(options))
        }
        Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => Ok(None),
    }
}

/// What a request that is answered here takes room for.
const fn load(verb: Verb) -> Load {
    match verb {
        Verb::Watch => Load::LongRunning,
        Verb::Get | Verb::List => Load::Reading,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => Load::Mutating,
    }
}

/// Whether the verb exists for this part of an object.
fn check_served(verb: Verb, path: &ObjectPath) -> Result<(), ApiError> {
    let Some(subresource) = path.subresource else {
        // Objects are created in a namespace, not beside them.
        let in_place = path.namespace.is_some() || !path.endpoint.info().namespaced;
        return if in_place || !matches!(verb, Verb::Create | Verb::DeleteCollection) {
            Ok(())
        } else {
            Err(ApiError::method_not_allowed())
        };
    };
    if subresource.verbs().contains(&verb.name()) {
        Ok(())
    } else {
        Err(ApiError::method_not_allowed())
    }
}

/// Whether a request is answered by a node.
fn is_stream(path: &ObjectPath) -> bool {
    matches!(
        path.subresource,
        Some(Subresource::Log | Subresource::Exec | Subresource::Attach | Subresource::PortForward)
    )
}

/// The scale that an object has now.
fn scale_answer(call: &Call<'_>, object: &Object) -> Result<Response<Body>, ApiError> {
    let scale = scale::of(call.path.endpoint.kind, object);
    value_answer(StatusCode::OK, scale.value(), call.form()?.wire)
}

/// The stream of a watch; the place it takes is free again when it ends.
fn session_body(session: Session, held: (Permit, OpenStream, Option<Attending>)) -> Body {
    let frames = stream::unfold((session, held), |(mut session, held)| async move {
        let bytes = session.next().await?;
        Some((Ok(Frame::data(bytes)), (session, held)))
    });
    StreamBody::new(frames).boxed_unsync()
}
