//! Who a pod from a file is: its uid follows from its namespace, its name and its content.
//!
//! The same manifest therefore finds its running containers again after a crash, and a changed one is another pod.

use std::fmt::Write as _;

use pulselet_model::Pod;
use pulselet_vocabulary::PodName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Where a pod came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// Given to `run` on the command line.
    Run,
    /// A file in the directory of static pods.
    Manifest { path: String },
    /// Handed over through the socket.
    Detached,
    /// Bound to this node at an API server, which decides over it.
    Api,
}

impl Origin {
    pub fn is_api(&self) -> bool {
        match self {
            Self::Api => true,
            Self::Run | Self::Manifest { .. } | Self::Detached => false,
        }
    }
}

/// The name of a pod on its node.
pub fn pod_name_of(pod: &Pod) -> PodName {
    PodName::new(pod.namespace(), pod.name())
}

/// A uid in the usual form; `metadata.uid` wins where there is one.
pub fn uid_of(pod: &Pod) -> String {
    if let Some(uid) = pod.metadata.uid.as_deref().filter(|uid| is_plain(uid)) {
        return uid.to_owned();
    }
    let mut hash = Sha256::new();
    for part in [pod.namespace(), pod.name()] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let content = (&pod.metadata.labels, &pod.metadata.annotations, &pod.spec);
    hash.update(serde_json::to_vec(&content).expect("a pod is plain data"));
    let digest = hash.finalize();
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    // Version 8 (made by a rule of our own), variant 1.
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let mut uid = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            uid.push('-');
        }
        // Writing to a string does not fail.
        let _ = write!(uid, "{byte:02x}");
    }
    uid
}

/// A uid becomes part of paths, so only harmless characters will do.
fn is_plain(uid: &str) -> bool {
    !uid.is_empty()
        && uid.len() <= 64
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn uid(namespace: &str, image: &str, given: Option<&str>) -> String {
        let pod = json!({
            "metadata": {"name": "web", "namespace": namespace, "uid": given},
            "spec": {"containers": [{"name": "app", "image": image}]},
        });
        uid_of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn equal_content_is_the_same_pod() {
        let one = uid("default", "a", None);
        assert_eq!(one, uid("default", "a", None));
        assert_ne!(one, uid("default", "b", None));
        assert_ne!(one, uid("other", "a", None));
        assert_eq!((one.len(), &one[14..15]), (36, "8"));
    }

    #[test]
    fn a_given_uid_is_kept_unless_it_is_a_path() {
        assert_eq!(uid("default", "a", Some("abc-1")), "abc-1");
        assert_eq!(uid("default", "a", Some("../x")), uid("default", "a", None));
    }
}
