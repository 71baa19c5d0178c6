//! Volumes: a name, exactly one source, and a source that is complete.
//!
//! The sources that a node without a cloud can meet are checked field by field as upstream does; of the others
//! only that they stand alone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as core;

use super::env::{VOLUME_FIELD_PATHS, validate_field_ref, validate_resource_field_ref};
use super::{Context, names};
use crate::field::{Errors, Path};
use pulselet_schema::quantity::Amount;

/// Highest file mode, octal 0777.
const MAX_MODE: i32 = 0o777;
const MODE_DETAIL: &str = "must be a number between 0 and 0777 (octal), both inclusive";
/// A service account token lives at least this long.
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;

/// The volumes that mounts may refer to: those without errors, and whether each is a claim.
#[derive(Debug, Default)]
pub(super) struct VolumeNames<'a>(BTreeMap<&'a str, bool>);

impl VolumeNames<'_> {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the volume of this name is a claim; `None` if there is no such volume.
    pub(super) fn is_claim(&self, name: &str) -> Option<bool> {
        self.0.get(name).copied()
    }
}

pub(super) fn validate_volumes<'a>(
    errors: &mut Errors,
    pod_name: &str,
    path: Path<'_>,
    context: &Context<'a>,
) -> VolumeNames<'a> {
    let volumes = &context.spec.volumes;
    let mut valid = BTreeMap::new();
    let created_claims: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| volume.ephemeral.is_some() && !pod_name.is_empty())
        .map(|volume| format!("{pod_name}-{}", volume.name))
        .collect();
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        let before = errors.len();
        validate_source(errors, volume, path, context);
        if volume.name.is_empty() {
            errors.required(path.child("name"), "");
        } else {
            errors.invalid_each(path.child("name"), &volume.name, names::dns_label(&volume.name));
        }
        if valid.contains_key(volume.name.as_str()) {
            errors.duplicate(path.child("name"), &volume.name);
        }
        if errors.len() == before {
            let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
            valid.insert(volume.name.as_str(), is_claim);
        }
        if let Some(claim) = &volume.persistent_volume_claim
            && created_claims.contains(&claim.claim_name)
        {
            let claim_path = path.child("persistentVolumeClaim");
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(claim_path.child("claimName"), claim.claim_name.as_str(), detail);
        }
    }
    VolumeNames(valid)
}

/// The sources a volume has, in upstream's order.
fn sources(volume: &core::Volume) -> impl Iterator<Item = &'static str> {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephFS", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, set)| set.then_some(name))
}

/// Exactly one source. The first one is looked into, any further one is only refused.
fn validate_source(errors: &mut Errors, volume: &core::Volume, path: Path<'_>, context: &Context<'_>) {
    let mut sources = sources(volume);
    let Some(first) = sources.next() else {
        errors.required(path, "must specify a volume type");
        return;
    };
    validate_content(errors, volume, first, path.child(first), context);
    for further in sources {
        // Upstream misspells one of them, and clients may compare.
        let field = if further == "downwardAPI" {
            "downwarAPI"
        } else {
            further
        };
        errors.forbidden(path.child(field), "may not specify more than 1 volume type");
    }
}

fn validate_content(
    errors: &mut Errors,
    volume: &core::Volume,
    source: &str,
    path: Path<'_>,
    context: &Context<'_>,
) {
    let core::Volume {
        empty_dir,
        host_path,
        secret,
        nfs,
        downward_api,
        config_map,
        projected,
        image,
        ..
    } = volume;
    match source {
        "emptyDir" => empty_dir
            .iter()
            .for_each(|source| validate_empty_dir(errors, source, path)),
        "hostPath" => host_path
            .iter()
            .for_each(|source| validate_host_path(errors, source, path)),
        "secret" => secret.iter().for_each(|source| {
            required(errors, source.secret_name.as_deref(), path.child("secretName"));
            file_mode(errors, source.default_mode, path.child("defaultMode"));
            key_paths(errors, source.items.as_deref(), path.child("items"));
        }),
        "nfs" => nfs.iter().for_each(|source| validate_nfs(errors, source, path)),
        "persistentVolumeClaim" => {
            let name = volume
                .persistent_volume_claim
                .as_ref()
                .map(|claim| claim.claim_name.as_str());
            required(errors, name, path.child("claimName"));
        }
        "downwardAPI" => downward_api.iter().for_each(|source| {
            file_mode(errors, source.default_mode, path.child("defaultMode"));
            source
                .items
                .iter()
                .flatten()
                .for_each(|file| downward_file(errors, file, path));
        }),
        "configMap" => config_map.iter().for_each(|source| {
            required(errors, Some(&source.name), path.child("name"));
            file_mode(errors, source.default_mode, path.child("defaultMode"));
            key_paths(errors, source.items.as_deref(), path.child("items"));
        }),
        "projected" => projected
            .iter()
            .for_each(|source| validate_projected(errors, source, path, context)),
        "csi" => required(
            errors,
            volume.csi.as_ref().map(|csi| csi.driver.as_str()),
            path.child("driver"),
        ),
        "ephemeral" => volume.ephemeral.iter().for_each(|source| {
            if source.volume_claim_template.is_none() {
                errors.required(path.child("volumeClaimTemplate"), "");
            }
        }),
        "image" => image
            .iter()
            .for_each(|source| validate_image(errors, source, path)),
        // Sources that need a cloud or a storage cluster.
        _ => {}
    }
}

fn required(errors: &mut Errors, value: Option<&str>, path: Path<'_>) {
    if value.unwrap_or_default().is_empty() {
        errors.required(path, "");
    }
}

fn file_mode(errors: &mut Errors, mode: Option<i32>, path: Path<'_>) {
    if let Some(mode) = mode.filter(|mode| !(0..=MAX_MODE).contains(mode)) {
        errors.invalid(path, mode, MODE_DETAIL);
    }
}

fn key_paths(errors: &mut Errors, items: Option<&[core::KeyToPath]>, path: Path<'_>) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let path = path.index(index);
        required(errors, Some(&item.key), path.child("key"));
        required(errors, Some(&item.path), path.child("path"));
        errors.invalid_each(
            path.child("path"),
            &item.path,
            names::local_non_reserved_path(&item.path),
        );
        file_mode(errors, item.mode, path.child("mode"));
    }
}

fn validate_empty_dir(errors: &mut Errors, source: &core::EmptyDirVolumeSource, path: Path<'_>) {
    let limit = source
        .size_limit
        .as_ref()
        .and_then(|limit| Amount::parse(&limit.0).ok());
    if limit.is_some_and(Amount::is_negative) {
        errors.forbidden(
            path.child("sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        );
    }
}

fn validate_host_path(errors: &mut Errors, source: &core::HostPathVolumeSource, path: Path<'_>) {
    const TYPES: [&str; 8] = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if source.path.is_empty() {
        errors.required(path.child("path"), "");
        return;
    }
    if let Some(detail) = names::no_backsteps(&source.path) {
        errors.invalid(path.child("path"), source.path.as_str(), detail);
    }
    if let Some(kind) = source.type_.as_deref().filter(|kind| !TYPES.contains(kind)) {
        errors.not_supported(path.child("type"), kind, &TYPES);
    }
}

fn validate_nfs(errors: &mut Errors, source: &core::NFSVolumeSource, path: Path<'_>) {
    required(errors, Some(&source.server), path.child("server"));
    required(errors, Some(&source.path), path.child("path"));
    if !source.path.starts_with('/') {
        errors.invalid(
            path.child("path"),
            source.path.as_str(),
            "must be an absolute path",
        );
    }
}

fn validate_image(errors: &mut Errors, source: &core::ImageVolumeSource, path: Path<'_>) {
    required(errors, source.reference.as_deref(), path.child("reference"));
    let policy = source.pull_policy.as_deref().unwrap_or_default();
    super::container::one_of(
        errors,
        path.child("pullPolicy"),
        policy,
        &["Always", "IfNotPresent", "Never"],
    );
}

fn downward_file(errors: &mut Errors, file: &core::DownwardAPIVolumeFile, path: Path<'_>) {
    required(errors, Some(&file.path), path.child("path"));
    errors.invalid_each(
        path.child("path"),
        &file.path,
        names::local_non_reserved_path(&file.path),
    );
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            validate_field_ref(errors, field, &VOLUME_FIELD_PATHS, path.child("fieldRef"));
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(path, "resource", detail);
            }
        }
        (None, Some(resource)) => {
            validate_resource_field_ref(errors, resource, true, path.child("resourceFieldRef"));
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    file_mode(errors, file.mode, path.child("mode"));
}

fn validate_projected(
    errors: &mut Errors,
    volume: &core::ProjectedVolumeSource,
    path: Path<'_>,
    context: &Context<'_>,
) {
    file_mode(errors, volume.default_mode, path.child("defaultMode"));
    let mut paths = BTreeSet::new();
    let list = path.child("sources");
    for (index, source) in volume.sources.iter().flatten().enumerate() {
        let source_path = list.index(index);
        let mut count = 0;
        for (field, name, items) in [
            (
                "secret",
                source.secret.as_ref().map(|secret| &secret.name),
                source.secret.as_ref().map(|s| &s.items),
            ),
            (
                "configMap",
                source.config_map.as_ref().map(|map| &map.name),
                source.config_map.as_ref().map(|m| &m.items),
            ),
        ] {
            let (Some(name), Some(items)) = (name, items) else {
                continue;
            };
            count += 1;
            let field_path = source_path.child(field);
            required(errors, Some(name), field_path.child("name"));
            key_paths(errors, items.as_deref(), field_path.child("items"));
            for item in items.iter().flatten().filter(|item| !item.path.is_empty()) {
                if !paths.insert(item.path.as_str()) {
                    errors.invalid(path, name.as_str(), "conflicting duplicate paths");
                }
            }
        }
        if let Some(downward) = &source.downward_api {
            count += 1;
            for file in downward.items.iter().flatten() {
                downward_file(errors, file, source_path.child("downwardAPI"));
                if !file.path.is_empty() && !paths.insert(file.path.as_str()) {
                    errors.invalid(path, file.path.as_str(), "conflicting duplicate paths");
                }
            }
        }
        if let Some(token) = &source.service_account_token {
            count += 1;
            service_account_token(
                errors,
                token,
                source_path.child("serviceAccountToken"),
                path,
                context,
            );
        }
        count += usize::from(source.cluster_trust_bundle.is_some());
        if count > 1 {
            errors.forbidden(source_path, "may not specify more than 1 volume type per source");
        }
    }
}

fn service_account_token(
    errors: &mut Errors,
    token: &core::ServiceAccountTokenProjection,
    path: Path<'_>,
    volume: Path<'_>,
    context: &Context<'_>,
) {
    let seconds = token.expiration_seconds.unwrap_or_default();
    if seconds < MIN_TOKEN_SECONDS {
        let detail = "may not specify a duration less than 10 minutes";
        errors.invalid(path.child("expirationSeconds"), seconds, detail);
    }
    if seconds > MAX_TOKEN_SECONDS {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(path.child("expirationSeconds"), seconds, detail);
    }
    required(errors, Some(&token.path), volume.child("path"));
    if !context.tolerated.token_paths {
        errors.invalid_each(
            volume.child("path"),
            &token.path,
            names::local_non_reserved_path(&token.path),
        );
    }
}

/// Whether a projected token is to be written outside its volume.
pub(super) fn has_bad_token_path(volumes: &[core::Volume]) -> bool {
    let projected = volumes.iter().filter_map(|volume| volume.projected.as_ref());
    let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    let mut tokens = sources.filter_map(|source| source.service_account_token.as_ref());
    tokens.any(|token| !names::local_non_reserved_path(&token.path).is_empty())
}
