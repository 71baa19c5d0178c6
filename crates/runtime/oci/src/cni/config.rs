//! The configuration of a network: a list of plugins, from a file of an administrator.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of a file that are read. Lists have a few hundred.
const MAX_FILE: u64 = 1 << 20;

/// Files of a directory that are looked at.
const MAX_FILES: usize = 1_000;

/// Names of files end like this.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// The versions whose results have the form that is read here.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Those in which there is no CHECK yet, and no result is given to DEL.
const VERSIONS_WITHOUT_CHECK: [&str; 2] = ["0.3.0", "0.3.1"];

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the directory of CNI configurations {path}: {source}", path = path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("there is no CNI configuration in {path}", path = path.display())]
    None { path: PathBuf },
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no CNI configuration: {source}", path = path.display())]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path} is no CNI configuration: {detail}", path = path.display())]
    Invalid { path: PathBuf, detail: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkConfig {
    pub(super) cni_version: String,
    pub(super) name: String,
    #[serde(default)]
    disable_check: bool,
    /// At least one, each with its type.
    pub(super) plugins: Vec<Map<String, Value>>,
}

impl NetworkConfig {
    /// The first by name of those that make sense.
    pub(super) fn read_first(directory: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::List {
            path: directory.to_owned(),
            source,
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)?.take(MAX_FILES) {
            let path = entry.map_err(failed)?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) {
                paths.push(path);
            }
        }
        paths.sort();
        let mut first_error = None;
        for path in &paths {
            match Self::read(path) {
                Ok(config) => return Ok(config),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(ConfigError::None {
            path: directory.to_owned(),
        }))
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(MAX_FILE).read_to_string(&mut text))
            .map_err(|source| ConfigError::Read {
                path: path.to_owned(),
                source,
            })?;
        let parsed = parse(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source,
        })?;
        match parsed.problem() {
            None => Ok(parsed),
            Some(detail) => Err(ConfigError::Invalid {
                path: path.to_owned(),
                detail,
            }),
        }
    }

    fn problem(&self) -> Option<String> {
        if !VERSIONS.contains(&self.cni_version.as_str()) {
            let known = VERSIONS.join(", ");
            return Some(format!(
                "cniVersion {:?} is not supported (supported: {known})",
                self.cni_version
            ));
        }
        if !is_plain_name(&self.name) {
            return Some(format!("{:?} is not the name of a network", self.name));
        }
        if self.plugins.is_empty() {
            return Some("it has no plugins".to_owned());
        }
        let mut kinds = self.plugins.iter().map(kind);
        let wrong = kinds.find(|kind| !is_plain_name(kind))?;
        Some(format!("{wrong:?} is not the type of a plugin"))
    }

    /// Whether plugins of this list can be asked to check what they made.
    pub(super) fn has_check(&self) -> bool {
        !self.disable_check && !VERSIONS_WITHOUT_CHECK.contains(&self.cni_version.as_str())
    }
}

/// The name of a plugin's program; empty if it has none.
pub(super) fn kind(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// A list, or a single plugin, which is a list of one.
fn parse(text: &str) -> serde_json::Result<NetworkConfig> {
    let value: Value = serde_json::from_str(text)?;
    if value.get("plugins").is_some() || value.get("type").is_none() {
        return serde_json::from_value(value);
    }
    let field = |name: &str| value.get(name).cloned().unwrap_or_default();
    serde_json::from_value(serde_json::json!({
        "cniVersion": field("cniVersion"),
        "name": field("name"),
        "plugins": [value],
    }))
}

/// For a fuzzer: what is taken names programs and networks plainly.
pub(super) fn fuzz_config(bytes: &[u8]) {
    let parsed = std::str::from_utf8(bytes).ok().and_then(|text| parse(text).ok());
    if let Some(config) = parsed.filter(|config| config.problem().is_none()) {
        let mut names = config.plugins.iter().map(kind).chain([config.name.as_str()]);
        assert!(names.all(|name| !name.contains('/') && !name.starts_with('.')));
        let _ = config.has_check();
    }
}

/// Names become names of files, here and in plugins.
fn is_plain_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<NetworkConfig, ConfigError> {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            fs::write(directory.path().join(name), text).expect("writes");
        }
        NetworkConfig::read_first(directory.path())
    }

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge"}]}"#;

    #[test]
    fn the_first_file_by_name_counts() {
        let single = r#"{"cniVersion": "0.3.1", "name": "b", "type": "ptp", "mtu": 1400}"#;
        let files = [("20.conflist", LIST), ("10.conf", single), ("00.txt", "no")];
        let config = read(&files).expect("reads");
        assert_eq!((config.name.as_str(), kind(&config.plugins[0])), ("b", "ptp"));
        assert!(!config.has_check());
        let config = read(&[("20.conflist", LIST), ("10.conf", "{")]).expect("goes on");
        assert_eq!(config.name, "a");
        assert!(config.has_check());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, complaint) in [
            ("{", "no CNI configuration"),
            ("[]", "no CNI configuration"),
            (
                r#"{"cniVersion": "1.0.0", "name": "a", "plugins": []}"#,
                "no plugins",
            ),
            (
                r#"{"cniVersion": "0.2.0", "name": "a", "type": "x"}"#,
                "\"0.2.0\"",
            ),
            (
                r#"{"cniVersion": "1.0.0", "name": "a/b", "type": "x"}"#,
                "name of a network",
            ),
            (
                r#"{"cniVersion": "1.0.0", "name": "a", "type": "../x"}"#,
                "type of a plugin",
            ),
        ] {
            let error = read(&[("10.conf", text)]).expect_err("is wrong").to_string();
            assert!(
                error.contains(complaint) && error.contains("10.conf"),
                "{text}: {error}"
            );
        }
        assert!(matches!(read(&[]), Err(ConfigError::None { .. })));
    }
}
