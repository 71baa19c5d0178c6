//! What belongs into a volume that the node writes: config maps, secrets, the downward API, tokens.
//!
//! From a manifest and the objects it names to files as values. Nothing here touches a disk.

use std::collections::BTreeMap;

use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::{Container, Pod};
use thiserror::Error;

use crate::downward::{Downward, DownwardError};
use crate::objects::{ObjectError, Objects, SourceError, SourceKind, Token, Wanted};

/// Bytes in the files of one volume. The API bounds an object to a mebibyte; a volume can name many.
const MAX_VOLUME_BYTES: usize = 16 << 20;
/// What a file may be used for where the manifest does not say.
const DEFAULT_MODE: i32 = 0o644;
/// A token is its user's alone where it is known who that is.
const TOKEN_MODE: u32 = 0o600;
/// What the pod's group may do with a file that it is given.
const GROUP_MODE: u32 = 0o440;
/// How long a token should be good for where the manifest does not say, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeFile {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
}

/// By path below the volume.
pub(crate) type VolumeFiles = BTreeMap<String, VolumeFile>;

/// The text goes into an event, behind the volume's name.
#[derive(Debug, Error)]
pub(crate) enum ContentsError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("configmap references non-existent config key: {key}")]
    ConfigMapKey { key: String },
    #[error("references non-existent secret key: {key}")]
    SecretKey { key: String },
    #[error("{path}: {source}")]
    Downward { path: String, source: DownwardError },
    #[error("failed to fetch token: {0}")]
    Token(SourceError),
    #[error("{what} volumes are not supported on this node")]
    Unsupported { what: &'static str },
    #[error("the volume has more than {MAX_VOLUME_BYTES} bytes")]
    TooLarge,
}

impl ContentsError {
    /// The API could not be asked: nothing is known to be wrong with the pod.
    pub(crate) const fn is_outage(&self) -> bool {
        match self {
            Self::Object(
                ObjectError::Fetch { .. }
                | ObjectError::Timeout { .. }
                | ObjectError::Services { .. }
                | ObjectError::ServicesTimeout,
            )
            | Self::Token(SourceError::Fetch { .. }) => true,
            Self::Object(
                ObjectError::NotFound { .. } | ObjectError::NoApi { .. } | ObjectError::TooLarge { .. },
            )
            | Self::Token(SourceError::NoApi | SourceError::Unsupported { .. })
            | Self::ConfigMapKey { .. }
            | Self::SecretKey { .. }
            | Self::Downward { .. }
            | Self::Unsupported { .. }
            | Self::TooLarge => false,
        }
    }
}

/// Which token a volume wants: for whom, and for how many seconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenWish {
    pub(crate) audience: Option<String>,
    pub(crate) seconds: i64,
}

pub(crate) type Tokens = BTreeMap<TokenWish, Result<Token, SourceError>>;

/// A volume whose files the node writes.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    /// Its secrets do not belong on a disk.
    pub(crate) in_memory: bool,
    default_mode: Option<i32>,
    parts: Vec<Part<'a>>,
}

#[derive(Debug)]
enum Part<'a> {
    Object {
        kind: SourceKind,
        name: &'a str,
        items: Option<&'a [core::KeyToPath]>,
        optional: Option<bool>,
    },
    Downward(&'a [core::DownwardAPIVolumeFile]),
    Token(&'a core::ServiceAccountTokenProjection),
    Unsupported(&'static str),
}

impl<'a> Contents<'a> {
    /// None for other kinds of volumes.
    pub(crate) fn of(volume: &'a core::Volume) -> Option<Self> {
        if let Some(source) = &volume.config_map {
            let part = Part::Object {
                kind: SourceKind::ConfigMap,
                name: &source.name,
                items: source.items.as_deref(),
                optional: source.optional,
            };
            return Some(Self::single(false, source.default_mode, part));
        }
        if let Some(source) = &volume.secret {
            let part = Part::Object {
                kind: SourceKind::Secret,
                name: source.secret_name.as_deref().unwrap_or_default(),
                items: source.items.as_deref(),
                optional: source.optional,
            };
            return Some(Self::single(true, source.default_mode, part));
        }
        if let Some(source) = &volume.downward_api {
            let part = Part::Downward(source.items.as_deref().unwrap_or_default());
            return Some(Self::single(true, source.default_mode, part));
        }
        let source = volume.projected.as_ref()?;
        Some(Self {
            in_memory: true,
            default_mode: source.default_mode,
            parts: source.sources.iter().flatten().flat_map(parts).collect(),
        })
    }

    fn single(in_memory: bool, default_mode: Option<i32>, part: Part<'a>) -> Self {
        Self {
            in_memory,
            default_mode,
            parts: vec![part],
        }
    }

    /// Adds the objects it names.
    pub(crate) fn want(&self, wanted: &mut Wanted) {
        for part in &self.parts {
            if let Part::Object { kind, name, .. } = part {
                let names = match kind {
                    SourceKind::ConfigMap => &mut wanted.config_maps,
                    SourceKind::Secret => &mut wanted.secrets,
                };
                names.insert((*name).to_owned());
            }
        }
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = TokenWish> {
        self.parts.iter().filter_map(|part| match part {
            Part::Token(token) => Some(wish(token)),
            Part::Object { .. } | Part::Downward(_) | Part::Unsupported(_) => None,
        })
    }

    /// The versions of what comes from the API; none where something has no version to go by.
    pub(crate) fn versions(&self, objects: &Objects, tokens: &Tokens) -> Option<Vec<String>> {
        let version = |part: &Part<'_>| match part {
            Part::Object { kind, name, .. } => objects.version(*kind, name),
            Part::Token(token) => match tokens.get(&wish(token))? {
                Ok(token) => Some(token.expires_at.to_string()),
                Err(_) => None,
            },
            // The rest is the manifest's.
            Part::Downward(_) | Part::Unsupported(_) => Some(String::new()),
        };
        self.parts.iter().map(version).collect()
    }

    pub(crate) fn files(
        &self,
        downward: Downward<'_>,
        objects: &Objects,
        tokens: &Tokens,
    ) -> Result<VolumeFiles, ContentsError> {
        let mut draft = Draft {
            default_mode: self.default_mode.unwrap_or(DEFAULT_MODE),
            group: fs_group(downward.pod),
            bytes: 0,
            files: BTreeMap::new(),
        };
        for part in &self.parts {
            match part {
                Part::Object {
                    kind: SourceKind::ConfigMap,
                    name,
                    items,
                    optional,
                } => {
                    let values = objects.config_map(name, *optional)?.map(config_map_values);
                    let missing = |key| ContentsError::ConfigMapKey { key };
                    draft.add_object(&values.unwrap_or_default(), *items, *optional, missing)?;
                }
                Part::Object {
                    kind: SourceKind::Secret,
                    name,
                    items,
                    optional,
                } => {
                    let values = objects.secret(name, *optional)?.map(secret_values);
                    let missing = |key| ContentsError::SecretKey { key };
                    draft.add_object(&values.unwrap_or_default(), *items, *optional, missing)?;
                }
                Part::Downward(items) => draft.add_downward(items, downward)?,
                Part::Token(token) => draft.add_token(token, downward.pod, tokens)?,
                Part::Unsupported(what) => return Err(ContentsError::Unsupported { what }),
            }
        }
        Ok(draft.files)
    }
}

fn parts(source: &core::VolumeProjection) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    if let Some(source) = &source.config_map {
        parts.push(Part::Object {
            kind: SourceKind::ConfigMap,
            name: &source.name,
            items: source.items.as_deref(),
            optional: source.optional,
        });
    }
    if let Some(source) = &source.secret {
        parts.push(Part::Object {
            kind: SourceKind::Secret,
            name: &source.name,
            items: source.items.as_deref(),
            optional: source.optional,
        });
    }
    if let Some(source) = &source.downward_api {
        parts.push(Part::Downward(source.items.as_deref().unwrap_or_default()));
    }
    if let Some(source) = &source.service_account_token {
        parts.push(Part::Token(source));
    }
    if source.cluster_trust_bundle.is_some() {
        parts.push(Part::Unsupported("clusterTrustBundle"));
    }
    if source.pod_certificate.is_some() {
        parts.push(Part::Unsupported("podCertificate"));
    }
    parts
}

fn wish(token: &core::ServiceAccountTokenProjection) -> TokenWish {
    TokenWish {
        audience: token.audience.clone().filter(|audience| !audience.is_empty()),
        seconds: token.expiration_seconds.unwrap_or(TOKEN_SECONDS),
    }
}

type Values<'o> = BTreeMap<&'o str, &'o [u8]>;

fn config_map_values(object: &core::ConfigMap) -> Values<'_> {
    let texts = object.data.iter().flatten();
    let binary = object.binary_data.iter().flatten();
    texts
        .map(|(key, text)| (key.as_str(), text.as_bytes()))
        .chain(binary.map(|(key, data)| (key.as_str(), data.0.as_slice())))
        .collect()
}

fn secret_values(object: &core::Secret) -> Values<'_> {
    let data = object.data.iter().flatten();
    data.map(|(key, data)| (key.as_str(), data.0.as_slice()))
        .collect()
}

/// Files on their way into a volume; a later one takes the place of an earlier one.
struct Draft {
    default_mode: i32,
    group: Option<u32>,
    bytes: usize,
    files: VolumeFiles,
}

impl Draft {
    fn add_object(
        &mut self,
        values: &Values<'_>,
        items: Option<&[core::KeyToPath]>,
        optional: Option<bool>,
        missing: impl Fn(String) -> ContentsError,
    ) -> Result<(), ContentsError> {
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            return values
                .iter()
                .try_for_each(|(key, data)| self.add(key, data.to_vec(), None));
        };
        for item in items {
            match values.get(item.key.as_str()) {
                Some(data) => self.add(&item.path, data.to_vec(), item.mode)?,
                None if optional == Some(true) => {}
                None => return Err(missing(item.key.clone())),
            }
        }
        Ok(())
    }

    fn add_downward(
        &mut self,
        items: &[core::DownwardAPIVolumeFile],
        downward: Downward<'_>,
    ) -> Result<(), ContentsError> {
        for item in items {
            let value = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => downward.field(&field.field_path),
                (None, Some(selector)) => downward.resource(selector, None),
                (None, None) => Ok(String::new()),
            };
            let value = value.map_err(|source| ContentsError::Downward {
                path: item.path.clone(),
                source,
            })?;
            self.add(&item.path, value.into_bytes(), item.mode)?;
        }
        Ok(())
    }

    fn add_token(
        &mut self,
        token: &core::ServiceAccountTokenProjection,
        pod: &Pod,
        tokens: &Tokens,
    ) -> Result<(), ContentsError> {
        let given = match tokens.get(&wish(token)) {
            Some(Ok(given)) => given,
            Some(Err(error)) => return Err(ContentsError::Token(error.clone())),
            None => return Err(ContentsError::Token(SourceError::NoApi)),
        };
        self.add(&token.path, given.text.clone().into_bytes(), None)?;
        let user = common_user(pod);
        if let Some(file) = self.files.get_mut(&token.path)
            && (user.is_some() || self.group.is_some())
        {
            file.user = user;
            file.mode = TOKEN_MODE | if self.group.is_some() { GROUP_MODE } else { 0 };
        }
        Ok(())
    }

    fn add(&mut self, path: &str, data: Vec<u8>, mode: Option<i32>) -> Result<(), ContentsError> {
        self.bytes += data.len();
        if self.bytes > MAX_VOLUME_BYTES {
            return Err(ContentsError::TooLarge);
        }
        let mode = mode.unwrap_or(self.default_mode);
        let mode = u32::try_from(mode).unwrap_or(0) & 0o777;
        let file = VolumeFile {
            data,
            mode: mode | if self.group.is_some() { GROUP_MODE } else { 0 },
            user: None,
            group: self.group,
        };
        self.files.insert(path.to_owned(), file);
        Ok(())
    }
}

/// The group that a pod's volumes belong to.
pub(crate) fn fs_group(pod: &Pod) -> Option<u32> {
    as_id(pod.spec.security_context.as_ref()?.fs_group?)
}

fn as_id(number: i64) -> Option<u32> {
    u32::try_from(number).ok()
}

/// The user of all containers, if they have the same.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec.security_context.as_ref().and_then(|it| it.run_as_user);
    let user = |container: &Container| {
        let own = container.security_context.as_ref().and_then(|it| it.run_as_user);
        own.or(of_pod).and_then(as_id)
    };
    let mut users = pod
        .spec
        .init_containers
        .iter()
        .chain(&pod.spec.containers)
        .map(user);
    let first = users.next()??;
    users.all(|other| other == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::node_box;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn check(volume: &Value, security: &Value) -> Result<Vec<(String, String, u32)>, String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "labels": {"app": "shop"}},
            "spec": {
                "securityContext": security,
                "containers": [{"name": "app", "resources": {"limits": {"cpu": "2"}}}],
            },
        }))
        .unwrap();
        let settings = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"raw": "MzM="}});
        let keys = json!({"data": {"password": "aHVudGVyMg=="}});
        let objects = Objects::of(
            serde_json::from_value(json!({"settings": settings})).unwrap(),
            serde_json::from_value(json!({"keys": keys})).unwrap(),
        );
        let node = node_box();
        let downward = Downward {
            pod: &pod,
            uid: "u-1",
            pod_ips: &[],
            node: &node,
        };
        let volume: core::Volume = serde_json::from_value(volume.clone()).unwrap();
        let contents = Contents::of(&volume).expect("a volume that the node writes");
        let token = Token {
            text: "t0ken".to_owned(),
            expires_at: Timestamp::UNIX_EPOCH,
        };
        let tokens = contents.tokens().map(|wish| (wish, Ok(token.clone()))).collect();
        let files = contents.files(downward, &objects, &tokens);
        let shown =
            |(path, file): (String, VolumeFile)| (path, String::from_utf8(file.data).unwrap(), file.mode);
        files
            .map(|files| files.into_iter().map(shown).collect())
            .map_err(|error| error.to_string())
    }

    fn file(path: &str, text: &str, mode: u32) -> (String, String, u32) {
        (path.to_owned(), text.to_owned(), mode)
    }

    #[test]
    fn objects_become_files() {
        let all = json!({"name": "v", "configMap": {"name": "settings"}});
        assert_eq!(
            check(&all, &json!({})).unwrap(),
            [
                file("a", "1", 0o644),
                file("b", "2", 0o644),
                file("raw", "33", 0o644)
            ]
        );
        let items = json!([{"key": "a", "path": "deep/er", "mode": 0o600}, {"key": "b", "path": "b"}]);
        let some =
            json!({"name": "v", "configMap": {"name": "settings", "defaultMode": 0o440, "items": items}});
        assert_eq!(
            check(&some, &json!({})).unwrap(),
            [file("b", "2", 0o440), file("deep/er", "1", 0o600)]
        );
        let secret = json!({"name": "v", "secret": {"secretName": "keys", "defaultMode": 0o400}});
        let group = json!({"fsGroup": 5});
        assert_eq!(
            check(&secret, &group).unwrap(),
            [file("password", "hunter2", 0o440)]
        );
    }

    #[test]
    fn what_is_missing_is_an_error_unless_it_is_optional() {
        let items = json!([{"key": "none", "path": "x"}]);
        let cases = [
            (
                json!({"configMap": {"name": "none"}}),
                "configmap \"none\" not found",
            ),
            (
                json!({"secret": {"secretName": "none"}}),
                "secret \"none\" not found",
            ),
            (
                json!({"configMap": {"name": "settings", "items": items}}),
                "configmap references non-existent config key: none",
            ),
            (
                json!({"secret": {"secretName": "keys", "items": items}}),
                "references non-existent secret key: none",
            ),
            (
                json!({"projected": {"sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "s"}}]}}),
                "podCertificate volumes are not supported on this node",
            ),
        ];
        for (mut volume, message) in cases {
            volume["name"] = json!("v");
            assert_eq!(check(&volume, &json!({})).unwrap_err(), message);
            for kind in ["configMap", "secret"] {
                if let Some(source) = volume.get_mut(kind) {
                    source["optional"] = json!(true);
                    assert_eq!(check(&volume, &json!({})), Ok(Vec::new()));
                }
            }
        }
    }

    #[test]
    fn a_projected_volume_has_everything_in_one_place() {
        let sources = json!([
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "a"}]}},
            {"secret": {"name": "keys", "items": [{"key": "password", "path": "a"}]}},
            {"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpus", "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu"}, "mode": 0o400},
            ]}},
            {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        ]);
        let volume = json!({"name": "v", "projected": {"sources": sources}});
        let expected = [
            file("a", "hunter2", 0o644),
            file("cpus", "2", 0o400),
            file("labels", "app=\"shop\"", 0o644),
            file("token", "t0ken", 0o644),
        ];
        assert_eq!(check(&volume, &json!({})).unwrap(), expected);
        let files = check(&volume, &json!({"runAsUser": 7})).unwrap();
        assert_eq!(files[3], file("token", "t0ken", 0o600));
    }
}
