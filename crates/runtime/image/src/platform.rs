//! Operating system and architecture of images and of this machine, in Go's names as images use them.

use std::fmt;

use serde::Deserialize;

use crate::image::Descriptor;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
    pub variant: Option<String>,
}

impl Platform {
    /// What this machine runs.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "loongarch64" => "loong64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    }

    /// Whether an image for this platform runs on `host`. An image that does not say is taken at its word.
    pub(crate) fn runs_on(&self, host: &Self) -> bool {
        let fits = |ours: &str, theirs: &str| ours.is_empty() || ours == theirs;
        fits(&self.os, &host.os) && fits(&self.architecture, &host.architecture)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant
            .as_ref()
            .map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// The entry of an index for this host. One without a variant needs least of the processor and comes first; an entry
/// without a platform is used if it is the only one.
pub(crate) fn select<'a>(manifests: &'a [Descriptor], host: &Platform) -> Option<&'a Descriptor> {
    if let [only] = manifests
        && only.platform.is_none()
    {
        return Some(only);
    }
    let fits = |descriptor: &&Descriptor| {
        descriptor
            .platform
            .as_ref()
            .is_some_and(|platform| platform.os == host.os && platform.architecture == host.architecture)
    };
    let plain = |descriptor: &Descriptor| {
        descriptor
            .platform
            .as_ref()
            .is_some_and(|platform| platform.variant.is_none())
    };
    manifests
        .iter()
        .filter(fits)
        .min_by_key(|descriptor| !plain(descriptor))
}

/// The platforms of an index, for a message.
pub(crate) fn offered(manifests: &[Descriptor]) -> String {
    let platforms: Vec<_> = manifests
        .iter()
        .filter_map(|descriptor| descriptor.platform.as_ref())
        .filter(|platform| platform.os != "unknown")
        .map(ToString::to_string)
        .collect();
    platforms.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn entry(platform: Option<(&str, &str, Option<&str>)>) -> Descriptor {
        Descriptor {
            digest: Digest::of(format!("{platform:?}").as_bytes()),
            size: 1,
            platform: platform.map(|(os, architecture, variant)| Platform {
                os: os.to_owned(),
                architecture: architecture.to_owned(),
                variant: variant.map(str::to_owned),
            }),
            annotations: None,
        }
    }

    #[test]
    fn the_entry_for_this_machine_is_selected() {
        let host = Platform {
            os: "linux".to_owned(),
            architecture: "amd64".to_owned(),
            variant: None,
        };
        let wanted = entry(Some(("linux", "amd64", None)));
        let index = [
            entry(Some(("unknown", "unknown", None))),
            entry(Some(("windows", "amd64", None))),
            entry(Some(("linux", "amd64", Some("v3")))),
            entry(Some(("linux", "arm64", Some("v8")))),
            wanted.clone(),
        ];
        assert_eq!(
            select(&index, &host).map(|entry| entry.digest),
            Some(wanted.digest)
        );
        assert!(select(&index[..2], &host).is_none());
        assert!(
            select(&index[2..3], &host).is_some(),
            "a variant is better than nothing"
        );
        assert!(select(&[entry(None)], &host).is_some());
        assert_eq!(offered(&index[..2]), "windows/amd64");
    }
}
