//! Settings of links by which nobody on the pods' bridge changes how others route.
//!
//! By default the kernel believes what comes in by a link: a router advertisement gives it a default route and an address,
//! a redirect another way to a third machine. On the bridge every pod can send those, to the host and to other pods.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const SETTINGS: &str = "/proc/sys/net";

/// The host's end, by family. Packets from the bridge must come from where the host would send the answer.
const OF_BRIDGE: &[(&str, &str, &str)] = &[
    ("ipv6", "accept_ra", "0"),
    ("ipv6", "autoconf", "0"),
    ("ipv6", "accept_redirects", "0"),
    ("ipv4", "accept_redirects", "0"),
    ("ipv4", "secure_redirects", "0"),
    ("ipv4", "send_redirects", "0"),
    ("ipv4", "rp_filter", "1"),
];

/// The pod's end. A pod that wants it otherwise can say so in its own settings, which come later.
const OF_POD: &[(&str, &str, &str)] = &[
    ("ipv6", "accept_ra", "0"),
    ("ipv6", "accept_redirects", "0"),
    // Nobody else can have its own address of the link, which follows from the hardware address. So nobody has to be asked:
    // every question would go to every pod of the machine.
    ("ipv6", "accept_dad", "0"),
    ("ipv4", "accept_redirects", "0"),
];

#[derive(Debug, thiserror::Error)]
#[error("cannot protect a link from pods: cannot set {path} to {value}: {source}", path = path.display())]
pub(crate) struct ProtectError {
    path: PathBuf,
    value: &'static str,
    source: io::Error,
}

pub(crate) fn protect_bridge(name: &str) -> Result<(), ProtectError> {
    apply(Path::new(SETTINGS), name, OF_BRIDGE)
}

/// Whether the settings of a bridge are as they were made. Those that cannot be read do not count.
pub(crate) fn is_bridge_protected(name: &str) -> bool {
    OF_BRIDGE.iter().all(|(family, setting, value)| {
        let path = path_of(Path::new(SETTINGS), family, name, setting);
        fs::read_to_string(path).map_or(true, |text| text.trim() == *value)
    })
}

/// In the network namespace of the calling thread.
pub(crate) fn protect_pod(name: &str) -> Result<(), ProtectError> {
    apply(Path::new(SETTINGS), name, OF_POD)
}

/// A setting that is right already need not be writable, and one that is missing belongs to a family that is.
fn apply(root: &Path, link: &str, settings: &[(&str, &str, &'static str)]) -> Result<(), ProtectError> {
    for (family, name, value) in settings {
        let path = path_of(root, family, link, name);
        let Err(source) = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        else {
            continue;
        };
        let is_right = || fs::read_to_string(&path).is_ok_and(|text| text.trim() == *value);
        if source.kind() != io::ErrorKind::NotFound && !is_right() {
            return Err(ProtectError { path, value, source });
        }
    }
    Ok(())
}

fn path_of(root: &Path, family: &str, link: &str, setting: &str) -> PathBuf {
    root.join(family).join("conf").join(link).join(setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_left_out_and_what_cannot_be_set_is_an_error() {
        let root = tempfile::tempdir().expect("a directory");
        let conf = root.path().join("ipv4/conf/link");
        fs::create_dir_all(&conf).expect("makes");
        fs::write(conf.join("rp_filter"), "0").expect("writes");
        apply(root.path(), "link", OF_BRIDGE).expect("the rest is not there");
        assert_eq!(fs::read_to_string(conf.join("rp_filter")).expect("reads"), "1");
        fs::create_dir(conf.join("send_redirects")).expect("makes");
        let error = apply(root.path(), "link", OF_BRIDGE).expect_err("is no setting");
        assert!(error.to_string().contains("send_redirects"), "{error}");
    }
}
