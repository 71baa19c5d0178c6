//! Mirrors: other places for the images of a registry.
//!
//! A mirror has the images of a registry under the same paths. It is asked first; what it does not have comes from the
//! registry itself. Images keep the names that they have there. A mirror sees no credentials: those are for the registry.

use std::str::FromStr;

use reqwest::Url;

/// One mirror of one registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryMirror {
    /// As references name it, `docker.io` for those that name none.
    registry: String,
    url: Url,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseMirrorError {
    #[error("{text:?} is not REGISTRY=URL, such as docker.io=https://mirror.example.com")]
    Form { text: String },
    #[error(
        "{url:?} is not the address of a mirror: it begins with http:// or https:// and has a host and nothing else"
    )]
    Url { url: String },
}

impl RegistryMirror {
    pub(crate) fn is_of(&self, registry: &str) -> bool {
        self.registry == registry
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }
}

impl FromStr for RegistryMirror {
    type Err = ParseMirrorError;

    fn from_str(text: &str) -> Result<Self, ParseMirrorError> {
        let form = || ParseMirrorError::Form {
            text: text.to_owned(),
        };
        let (registry, address) = text.split_once('=').ok_or_else(form)?;
        if registry.is_empty() || registry.contains(['/', '@', ' ']) {
            return Err(form());
        }
        let refused = || ParseMirrorError::Url {
            url: address.to_owned(),
        };
        let url = Url::parse(address).map_err(|_| refused())?;
        let has_extra = !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
            || url.path() != "/";
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || has_extra {
            return Err(refused());
        }
        Ok(Self {
            registry: registry.to_owned(),
            url,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_a_registry_and_an_address() {
        let mirror: RegistryMirror = "docker.io=https://mirror.example.com".parse().expect("is one");
        assert!(mirror.is_of("docker.io") && !mirror.is_of("quay.io"));
        assert_eq!(mirror.url().as_str(), "https://mirror.example.com/");
        for wrong in [
            "",
            "docker.io",
            "=http://x",
            "docker.io=",
            "docker.io=ftp://x",
            "docker.io=http://",
            "docker.io=http://user:word@x",
            "docker.io=http://x/path",
            "docker.io=http://x/?q=1",
            "docker.io/library=http://x",
        ] {
            assert!(wrong.parse::<RegistryMirror>().is_err(), "{wrong:?}");
        }
    }
}
