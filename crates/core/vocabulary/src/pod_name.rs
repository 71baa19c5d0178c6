//! A pod's name within its node or API: namespace and name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The namespace of a pod that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Namespace and name of a pod. It is written `namespace/name`, and a text without a namespace means
/// [`DEFAULT_NAMESPACE`]. Clones share their text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no pod: it is NAME or NAMESPACE/NAME")]
pub struct ParsePodNameError(pub String);

impl PodName {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for PodName {
    type Err = ParsePodNameError;

    fn from_str(text: &str) -> Result<Self, ParsePodNameError> {
        let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(ParsePodNameError(text.to_owned()));
        }
        Ok(Self::new(namespace, name))
    }
}

impl Serialize for PodName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PodName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_as_it_was_written() {
        let name: PodName = "kube-system/proxy".parse().expect("a name");
        assert_eq!((&*name.namespace, &*name.name), ("kube-system", "proxy"));
        assert_eq!(name.to_string(), "kube-system/proxy");
        let json = serde_json::to_string(&name).expect("it is text");
        assert_eq!(json, "\"kube-system/proxy\"");
        assert_eq!(
            serde_json::from_str::<PodName>(&json).expect("it reads back"),
            name
        );
    }

    #[test]
    fn a_name_alone_is_in_the_default_namespace() {
        assert_eq!("web".parse(), Ok(PodName::new("default", "web")));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "/", "a/", "/b", "a/b/c"] {
            assert!(text.parse::<PodName>().is_err(), "{text}");
        }
    }
}
