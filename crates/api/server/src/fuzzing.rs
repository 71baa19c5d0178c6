//! What fuzzers call, and nobody else: these functions take bytes from outside the way a request takes them. Fuzzers
//! look for panics, hangs and endless memory; the answers do not matter.

use serde_json::{Value, json};

use crate::patch::{self, Patch};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;
use crate::rest::body::{self, Encoding};
use crate::rest::query::{Query, WriteOptions};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[("body", read_body), ("patch", patch_pod)];

/// Reads a body in each of the encodings a client may choose.
pub fn read_body(bytes: &[u8]) {
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf] {
        // Both a value and an error are right for bytes that mean nothing.
        let _ = body::parse(bytes, encoding);
    }
}

/// Patches a Pod with what the bytes say, in each of the four ways.
pub fn patch_pod(bytes: &[u8]) {
    let Ok(change) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1", "ports": [{"containerPort": 80}]}]},
    });
    let query = Query::parse("fieldManager=fuzzer&force=true");
    let options = query.and_then(|query| WriteOptions::parse(&query, "fuzzer/1"));
    let (Some(pod), Ok(options)) = (Object::new(pod), options) else {
        return;
    };
    let mut patches = vec![
        Patch::Merge(change.clone()),
        Patch::Strategic(change.clone()),
        Patch::Apply(change.clone()),
    ];
    patches.extend(patch::parse_json_patch(change).ok().map(Patch::Json));
    for patch in patches {
        let _ = patch::apply(&patch, ResourceKind::Pod.storage(), &pod, &options);
    }
}
