//! Under which names the machine has what belongs to a runtime's root, and what becomes of them when the root is moved.
//!
//! Cgroups and the bridge (and with it the table of nftables rules) are named after the root's path. A directory that is
//! moved takes its containers along, so it keeps the names it had. One that was copied gets names of its own, because
//! the original may be in use; and if the original is gone, what it left on the machine is taken away.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use pulselet_cgroup::Hierarchies;
use pulselet_shim_client::LiveShims;
use serde::{Deserialize, Serialize};

use crate::{
    network::{Network, NetworkOptions},
    runtime::tag,
};

const FILE: &str = "place.json";

/// How far below the root's cgroup those of containers are: in a sandbox, in a pod, in a class.
const CONTAINER_DEPTH: usize = 4;

/// How long the processes of a root that is gone may take to be gone too.
const KILL_PATIENCE: Duration = Duration::from_secs(3);

/// What the machine calls what belongs to a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names {
    pub(crate) cgroup: PathBuf,
    pub(crate) bridge: String,
}

impl Names {
    /// Those that follow from where the root is.
    fn of(root: &Path, bridge: &str) -> Self {
        Self {
            cgroup: PathBuf::from(format!("pulselet-{:016x}", tag(root))),
            bridge: bridge.to_owned(),
        }
    }
}

/// Where a root was when it was last opened.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    root: PathBuf,
    /// Device and number of its directory.
    inode: (u64, u64),
    names: Names,
}

/// The names for a root, which is a real path. `bridge` is the one that follows from where the root is now. May block.
pub(crate) fn names(root: &Path, bridge: &str, hierarchies: &Hierarchies) -> Names {
    let here = Names::of(root, bridge);
    let Some(inode) = inode(root) else { return here };
    let before = read(root);
    let names = match &before {
        Some(before) if before.inode == inode => before.names.clone(),
        Some(before) => {
            if before.names != here && self::inode(&before.root) != Some(before.inode) {
                take_down(before, hierarchies);
            }
            here
        }
        None => here,
    };
    let place = Place {
        root: root.to_owned(),
        inode,
        names: names.clone(),
    };
    let is_new = before.is_none_or(|before| before.root != place.root || before.inode != inode);
    if is_new && let Err(error) = write(root, &place) {
        tracing::warn!(%error, "cannot write down where the data directory is");
    }
    names
}

/// Whether a runtime has had this root: what it had on the machine may still be there.
pub(crate) fn was_opened(root: &Path) -> bool {
    root.join(FILE).exists()
}

/// Whether the machine has something under the names that follow from where the root is or was. Changes nothing.
pub(crate) fn has_traces(root: &Path, bridge: &str) -> bool {
    let names = Names::of(root, bridge);
    let has_cgroup = Hierarchies::find().is_ok_and(|hierarchies| hierarchies.cgroup(&names.cgroup).exists());
    has_cgroup || Path::new("/sys/class/net").join(names.bridge).exists()
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// `None` if nothing was written down, or nothing that can be read.
fn read(root: &Path) -> Option<Place> {
    let text = fs::read(root.join(FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write(root: &Path, place: &Place) -> std::io::Result<()> {
    let text = serde_json::to_vec(place)?;
    pulselet_durable::replace(&root.join(FILE), &text, 0o600)
}

/// Takes away what a root that is gone has left on the machine. Names that a live shim has belong to a root that was moved
/// and keeps them.
fn take_down(before: &Place, hierarchies: &Hierarchies) {
    let names = &before.names;
    let all = hierarchies.cgroup(&names.cgroup);
    let shims = LiveShims::find();
    let below = all.descendants(CONTAINER_DEPTH);
    let mut ids = below.iter().filter_map(|path| path.file_name()?.to_str());
    if let Some(directory) = ids.find_map(|id| shims.of(id)) {
        let directory = directory.display();
        tracing::warn!(%directory, "what the data directory left stays: another directory has it");
        return;
    }
    tracing::warn!(root = %before.root.display(), "the data directory was moved; what it left is removed");
    all.kill_and_remove(KILL_PATIENCE);
    let options = NetworkOptions {
        bridge: names.bridge.clone(),
        subnet: None,
        cni: None,
    };
    if let Err(error) = Network::new(&options).remove_strays() {
        tracing::warn!(bridge = names.bridge, %error, "the bridge of a moved data directory cannot be removed");
    }
}
