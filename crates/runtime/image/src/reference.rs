//! Names of images, as users of docker and Kubernetes write them.
//!
//! A [`Reference`] is complete: `busybox` has become `docker.io/library/busybox:latest`. It has a tag, a digest or both;
//! with both, the digest says which image it is.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

const DEFAULT_REGISTRY: &str = "docker.io";
/// An older name of the same registry.
const DEFAULT_REGISTRY_ALIAS: &str = "index.docker.io";
/// Where the default registry keeps images whose name has one part.
const OFFICIAL: &str = "library/";
const DEFAULT_TAG: &str = "latest";
/// Characters of registry and repository together, as the distribution specification has it.
const MAX_NAME_CHARS: usize = 255;
const MAX_TAG_CHARS: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image reference {text:?}: {why}")]
pub struct ParseReferenceError {
    text: String,
    why: &'static str,
}

impl Reference {
    /// The host, with its port where it has one.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Registry and repository.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The same repository at this digest, without a tag.
    #[must_use]
    pub fn at(&self, digest: Digest) -> Self {
        Self {
            registry: self.registry.clone(),
            repository: self.repository.clone(),
            tag: None,
            digest: Some(digest),
        }
    }

    /// As short as it can be written and still mean the same.
    pub fn familiar(&self) -> String {
        let full = self.to_string();
        let repository = full
            .strip_prefix(DEFAULT_REGISTRY)
            .and_then(|rest| rest.strip_prefix('/'));
        let official = repository.and_then(|rest| rest.strip_prefix(OFFICIAL));
        // Without its registry a name whose first part has a dot is one of that registry.
        let short = [official, repository]
            .into_iter()
            .flatten()
            .find(|short| short.parse().as_ref() == Ok(self));
        short.unwrap_or(&full).to_owned()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ParseReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|why| ParseReferenceError {
            text: text.chars().take(MAX_NAME_CHARS).collect(),
            why,
        })
    }
}

impl TryFrom<String> for Reference {
    type Error = ParseReferenceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> Self {
        reference.to_string()
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            let digest = digest
                .parse()
                .map_err(|_| "the digest must be sha256: and 64 hexadecimal digits")?;
            (rest, Some(digest))
        }
        None => (text, None),
    };
    // A colon after the last slash starts a tag, one before it a port.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if tag.is_some_and(|tag| !valid_tag(tag)) {
        return Err(
            "a tag is up to 128 letters, digits, '_', '.' and '-', and starts with neither '.' nor '-'",
        );
    }
    let (registry, repository) = split_name(name);
    if !valid_registry(registry) {
        return Err("the registry is not a host name with an optional port");
    }
    valid_repository(&repository)?;
    if registry.len() + 1 + repository.len() > MAX_NAME_CHARS {
        return Err("the name has more than 255 characters");
    }
    let tag = tag.or(digest.is_none().then_some(DEFAULT_TAG)).map(str::to_owned);
    Ok(Reference {
        registry: registry.to_owned(),
        repository,
        tag,
        digest,
    })
}

/// The first part is a registry if it looks like a host: a dot, a port, or `localhost`.
fn split_name(name: &str) -> (&str, String) {
    let (registry, repository) = match name.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    let registry = if registry == DEFAULT_REGISTRY_ALIAS {
        DEFAULT_REGISTRY
    } else {
        registry
    };
    if registry == DEFAULT_REGISTRY && !repository.is_empty() && !repository.contains('/') {
        (registry, format!("{OFFICIAL}{repository}"))
    } else {
        (registry, repository.to_owned())
    }
}

fn valid_tag(tag: &str) -> bool {
    tag.len() <= MAX_TAG_CHARS
        && !tag.is_empty()
        && !tag.starts_with(['.', '-'])
        && tag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

fn valid_registry(registry: &str) -> bool {
    // An IPv6 address is in brackets.
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                return port.is_empty() || port.strip_prefix(':').is_some_and(valid_port);
            }
            _ => return false,
        },
        None => match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, None),
        },
    };
    let valid_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(valid_label) && port.is_none_or(valid_port)
}

fn valid_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

fn valid_repository(repository: &str) -> Result<(), &'static str> {
    if repository.is_empty() {
        return Err("the name is empty");
    }
    if repository.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("the repository must be in lower case");
    }
    if repository.split('/').all(valid_component) {
        Ok(())
    } else {
        Err("parts of the name are lower-case letters and digits, separated by '.', '_', '__' or dashes")
    }
}

fn valid_component(component: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let separators = component.split(|char: char| char.is_ascii_lowercase() || char.is_ascii_digit());
    let valid_separator = |separator: &str| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
    };
    component.bytes().next().is_some_and(alphanumeric)
        && component.bytes().last().is_some_and(alphanumeric)
        && separators.into_iter().all(valid_separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_completed() {
        let with_digest = format!("busybox@{DIGEST}");
        let with_both = format!("localhost:5000/a/b:1@{DIGEST}");
        for (text, full) in [
            ("busybox", "docker.io/library/busybox:latest".to_owned()),
            ("busybox:1.36", "docker.io/library/busybox:1.36".to_owned()),
            ("grafana/grafana", "docker.io/grafana/grafana:latest".to_owned()),
            (
                "index.docker.io/busybox",
                "docker.io/library/busybox:latest".to_owned(),
            ),
            ("localhost/app", "localhost/app:latest".to_owned()),
            ("localhost:5000/app:V1", "localhost:5000/app:V1".to_owned()),
            ("[::1]:5000/app", "[::1]:5000/app:latest".to_owned()),
            (
                "example.com:5000",
                "docker.io/library/example.com:5000".to_owned(),
            ),
            (
                "registry.k8s.io/e2e-test-images/agnhost:2.53",
                "registry.k8s.io/e2e-test-images/agnhost:2.53".to_owned(),
            ),
            ("a/b__c.d---e_f", "docker.io/a/b__c.d---e_f:latest".to_owned()),
            (&with_digest, format!("docker.io/library/busybox@{DIGEST}")),
            (&with_both, format!("localhost:5000/a/b:1@{DIGEST}")),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), full);
            assert_eq!(full.parse(), Ok(reference), "the full form means the same");
        }
    }

    #[test]
    fn what_is_no_name() {
        let long = "a".repeat(300);
        for text in [
            "",
            ":",
            "@",
            "/",
            "a/",
            "/a",
            "a//b",
            "Busybox",
            "a/B",
            "a:",
            "a:-x",
            "a@sha256:12",
            "a..b",
            "-a",
            "a-",
            "a___b",
            "exa_mple.com/a",
            "host.:80/a",
            "host:port/a",
            "host:99999/a",
            "[::x]/a",
            "../etc/passwd",
            "a b",
            "a\0b",
            "ü",
            &long,
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn familiar_names_are_short() {
        for (text, short) in [
            ("docker.io/library/busybox:latest", "busybox:latest"),
            ("docker.io/grafana/grafana:1", "grafana/grafana:1"),
            ("docker.io.example.com/a:1", "docker.io.example.com/a:1"),
            ("docker.io/a.b/c:1", "docker.io/a.b/c:1"),
            ("docker.io/localhost/c:1", "docker.io/localhost/c:1"),
            ("docker.io/library/a/b:1", "library/a/b:1"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().familiar(), short);
        }
    }
}
