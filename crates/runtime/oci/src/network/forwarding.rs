//! Forwarding of IPv4 by this machine, which pods need to reach others: turned on for the first bridge and back with
//! the last.
//!
//! The setting belongs to the whole machine, and several agents may need it. What it was before is therefore written
//! down, before it changes, in a directory that all of them share and that lasts as long as the setting does: until the
//! machine restarts. Whoever takes the last bridge away puts it back, also for an agent that was killed. A machine that
//! forwarded before is left as it is. On one that did not, packets between links that are not ours stay unforwarded: the
//! table `pulselet_forwarding` drops them. The table is also what is believed where the record was removed by others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use pulselet_shim::record::{self, Durability};
use serde::{Deserialize, Serialize};

use super::firewall::{self, FirewallError};
use super::nftables::Outline;

/// Where agents tell each other what forwarding was. It is empty after a restart, as the setting is.
const SHARED_DIR: &str = "/run/pulselet/forwarding";

const RECORD_FILE: &str = "before.json";
const LOCK_FILE: &str = "lock";

/// The table that limits forwarding, of which there is one for all bridges.
pub(super) const TABLE: &str = "pulselet_forwarding";

/// What the table has, for however many bridges.
pub(super) const OUTLINE: Outline = Outline { chains: 1, rules: 2 };

const SETTINGS: &str = "/proc/sys/net/ipv4";

/// Bytes of a setting that are read: it is one number.
const MAX_SETTING: u64 = 64;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardingError {
    #[error("cannot use {path}: {source}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Record(#[from] record::RecordError),
    #[error("cannot change {setting}: {source}")]
    Change { setting: String, source: io::Error },
    #[error(transparent)]
    Limit(#[from] FirewallError),
}

/// What the machine had before forwarding was turned on, and who needs it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Before {
    /// Settings that the kernel changes along with forwarding, below the directory of settings.
    settings: BTreeMap<String, String>,
    bridges: BTreeSet<String>,
}

/// Forwarding in one network namespace.
#[derive(Debug)]
pub(crate) struct Forwarding {
    dir: PathBuf,
    /// Whether the machine forwarded for others when this was first looked at.
    is_unlimited: OnceLock<bool>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self::in_directory(Path::new(SHARED_DIR))
    }
}

impl Forwarding {
    /// For the network namespace of the calling thread.
    pub(crate) fn in_directory(dir: &Path) -> Self {
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_or(0, |metadata| metadata.ino());
        Self {
            dir: dir.join(namespace.to_string()),
            is_unlimited: OnceLock::new(),
        }
    }

    /// Makes the machine forward for a bridge. Doing it again changes nothing.
    pub(crate) fn turn_on(&self, bridge: &str) -> Result<(), ForwardingError> {
        let _lock = self.lock()?;
        let former = record::read::<Before>(&self.dir, RECORD_FILE)?;
        let mut before = match former {
            Some(before) => before,
            None if !is_on() => Before {
                settings: current_settings(),
                bridges: BTreeSet::new(),
            },
            None if *self.is_unlimited.get_or_init(|| limited_bridges().is_none()) => return Ok(()),
            None => Before {
                settings: BTreeMap::new(),
                bridges: limited_bridges().unwrap_or_default(),
            },
        };
        before.bridges.retain(|name| link_exists(name));
        before.bridges.insert(bridge.to_owned());
        record::write(&self.dir, RECORD_FILE, &before, Durability::Process)?;
        firewall::nft(&limit(&before.bridges))?;
        change_setting("ip_forward", "1")
    }

    /// Whether the machine forwards because some bridge needs it. Otherwise it did before, and the setting belongs to others.
    pub(crate) fn is_ours(&self) -> bool {
        self.dir.join(RECORD_FILE).exists()
    }

    /// For the time that the machine cannot be kept from forwarding for others.
    pub(crate) fn suspend(&self) -> Result<(), ForwardingError> {
        if is_on() && self.is_ours() {
            change_setting("ip_forward", "0")?;
        }
        Ok(())
    }

    /// A bridge needs it no more. With the last one everything is as it was.
    pub(crate) fn turn_off(&self, bridge: &str) -> Result<(), ForwardingError> {
        if !self.dir.join(RECORD_FILE).exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let Some(mut before) = record::read::<Before>(&self.dir, RECORD_FILE)? else {
            return Ok(());
        };
        before.bridges.retain(|name| name != bridge && link_exists(name));
        if !before.bridges.is_empty() {
            record::write(&self.dir, RECORD_FILE, &before, Durability::Process)?;
            return Ok(firewall::nft(&limit(&before.bridges))?);
        }
        // Forwarding itself comes first: it changes the others.
        change_setting("ip_forward", "0")?;
        for (setting, value) in &before.settings {
            // A link that is gone has no settings.
            let _ = change_setting(setting, value);
        }
        let _ = firewall::nft(&no_limit());
        let path = self.dir.join(RECORD_FILE);
        fs::remove_file(&path).map_err(|source| ForwardingError::Directory { path, source })
    }

    /// Held until it is dropped.
    fn lock(&self) -> Result<File, ForwardingError> {
        let path = self.dir.join(LOCK_FILE);
        let open = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            let mut options = File::options();
            let file = options.create(true).truncate(false).write(true).open(&path)?;
            file.lock()?;
            let is_there = fs::metadata(&path)
                .is_ok_and(|found| file.metadata().is_ok_and(|own| own.ino() == found.ino()));
            Ok(is_there.then_some(file))
        };
        let failed = |source| ForwardingError::Directory {
            path: self.dir.clone(),
            source,
        };
        loop {
            // Somebody may have tidied up between opening and locking.
            if let Some(file) = open().map_err(failed)? {
                return Ok(file);
            }
        }
    }
}

/// Removes the directory that agents share, if none of them needs it.
pub(crate) fn tidy_up() {
    tidy(Path::new(SHARED_DIR));
}

fn tidy(shared: &Path) {
    for entry in fs::read_dir(shared).into_iter().flatten().flatten() {
        let path = entry.path().join(LOCK_FILE);
        let is_free = File::open(&path).is_ok_and(|lock| {
            let is_unused = lock.try_lock().is_ok() && !entry.path().join(RECORD_FILE).exists();
            is_unused && fs::remove_file(&path).is_ok()
        });
        if is_free {
            // Not if somebody has begun anew in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
    let _ = fs::remove_dir(shared);
}

/// Whether this machine forwards now.
pub(super) fn is_on() -> bool {
    read_setting("ip_forward").as_deref() == Some("1")
}

/// Whether the table lets a bridge through, both ways, and drops the rest.
pub(super) fn is_limited_to(bridge: &str) -> bool {
    listed_limit().is_some_and(|text| lets_through(&text, bridge))
}

/// `text` is the table as nft lists it, which breaks long lines.
fn lets_through(text: &str, bridge: &str) -> bool {
    let accepts = |direction: &str| {
        text.split_once(direction)
            .and_then(|(_, rest)| rest.split_once(" accept"))
            .is_some_and(|(names, _)| names.contains(&format!("\"{bridge}\"")) && !names.contains("ifname"))
    };
    text.contains("hook forward") && text.contains("policy drop") && accepts("iifname") && accepts("oifname")
}

fn listed_limit() -> Option<String> {
    let output = Command::new("nft").args(["list", "table", "ip", TABLE]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The bridges that the table lets through; `None` if there is no table.
fn limited_bridges() -> Option<BTreeSet<String>> {
    let text = listed_limit()?;
    let quoted = text.split('"').skip(1).step_by(2);
    Some(
        quoted
            .filter(|name| link_exists(name))
            .map(str::to_owned)
            .collect(),
    )
}

/// Links that forwarded one by one, and whether redirects were heeded: the kernel changes both with forwarding.
fn current_settings() -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut keep = |name: String| {
        if let Some(value) = read_setting(&name) {
            settings.insert(name, value);
        }
    };
    keep("conf/all/accept_redirects".to_owned());
    let links = fs::read_dir(Path::new(SETTINGS).join("conf"))
        .into_iter()
        .flatten()
        .flatten();
    for link in links.filter_map(|entry| entry.file_name().into_string().ok()) {
        if link != "all" {
            keep(format!("conf/{link}/forwarding"));
        }
    }
    settings
}

fn read_setting(name: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(Path::new(SETTINGS).join(name)).ok()?;
    file.take(MAX_SETTING).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn change_setting(name: &str, value: &str) -> Result<(), ForwardingError> {
    let written = fs::write(Path::new(SETTINGS).join(name), value);
    written.map_err(|source| ForwardingError::Change {
        setting: format!("net/ipv4/{name}"),
        source,
    })
}

/// Of the network namespace of the calling thread, as the settings are.
fn link_exists(name: &str) -> bool {
    Path::new(SETTINGS).join("conf").join(name).exists()
}

/// Only what comes from or goes to one of the bridges is forwarded.
fn limit(bridges: &BTreeSet<String>) -> String {
    let names: Vec<String> = bridges.iter().map(|name| format!("\"{name}\"")).collect();
    let names = names.join(", ");
    format!(
        "add table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n\
         chain forward {{ type filter hook forward priority 0; policy drop;\n\
         iifname {{ {names} }} accept;\n\
         oifname {{ {names} }} accept;\n}}\n}}\n"
    )
}

fn no_limit() -> String {
    format!("add table ip {TABLE}\ndelete table ip {TABLE}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lets_a_bridge_through_both_ways_and_drops_the_rest() {
        let listed = |first: &str, second: &str, policy: &str| {
            format!(
                "table ip pulselet_forwarding {{\n\tchain forward {{\n\t\ttype filter hook forward priority filter; \
                 policy {policy};\n\t\tiifname {first}\n\t\toifname {second}\n\t}}\n}}\n"
            )
        };
        let (both, one) = ("{ \"one\",\n\t\t\t \"two\" } accept", "\"one\" accept");
        assert!(lets_through(&listed(both, both, "drop"), "two"));
        assert!(lets_through(&listed(one, one, "drop"), "one"));
        assert!(!lets_through(&listed(one, both, "drop"), "two"));
        assert!(!lets_through(&listed(both, "\"two\" drop", "drop"), "two"));
        assert!(!lets_through(&listed("\"two\" drop", both, "drop"), "two"));
        assert!(!lets_through(&listed(both, both, "accept"), "two"));
    }

    #[test]
    fn what_agents_share_is_removed_only_while_none_of_them_needs_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let shared = directory.path().join("forwarding");
        let forwarding = Forwarding::in_directory(&shared);
        let held = forwarding.lock().expect("locks");
        tidy(&shared);
        assert!(forwarding.dir.join(LOCK_FILE).exists(), "somebody is at it");
        record::write(
            &forwarding.dir,
            RECORD_FILE,
            &Before::default(),
            Durability::Process,
        )
        .expect("writes");
        drop(held);
        tidy(&shared);
        assert!(
            forwarding.dir.join(RECORD_FILE).exists(),
            "the machine is to be put back"
        );
        fs::remove_file(forwarding.dir.join(RECORD_FILE)).expect("is removed");
        tidy(&shared);
        assert!(!shared.exists());
        forwarding.lock().expect("begins anew");
    }
}
