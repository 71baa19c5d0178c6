//! Integration tests of the API model: one binary, one module per subject.

mod decoding;
mod gates;
mod model;
mod properties;
mod proposals;
mod template_vectors;
mod update_vectors;
mod updates;
mod validation;
mod vectors;
mod warnings;
mod workload_updates;
mod workloads;

use pulselet_model::{Admission, DecodeErrors, FieldError, GateSet, Pod, Profile};
use pulselet_model::{admit_create, decode_documents, decode_pod};

/// Decodes the one Pod in a manifest.
fn decode(manifest: &str, profile: Profile) -> Result<Pod, DecodeErrors> {
    let mut documents = decode_documents(manifest.as_bytes());
    let document = documents.next().expect("a document")?;
    decode_pod(&document, profile).pod
}

fn admit(manifest: &str, profile: Profile, gates: GateSet) -> Result<Admission, Vec<FieldError>> {
    admit_create(
        decode(manifest, profile).expect("the manifest decodes"),
        profile,
        gates,
    )
}

/// The errors of a manifest as `field: message`, in order.
fn errors(manifest: &str, profile: Profile) -> Vec<String> {
    match admit(manifest, profile, GateSet::ALL) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

/// A Pod with one container `app`; the arguments are YAML flow entries to add to the spec and to the container.
fn manifest(spec: &str, container: &str) -> String {
    let joined = |first: &str, more: &str| {
        if more.is_empty() {
            first.to_owned()
        } else {
            format!("{first}, {more}")
        }
    };
    let container = joined("name: app, image: app:1", container);
    let spec = joined(&format!("containers: [{{{container}}}]"), spec);
    format!("{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{{spec}}}}}").replacen(
        "{apiVersion",
        "---\n{apiVersion",
        1,
    )
}
