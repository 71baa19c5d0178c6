//! What of the machine's root file system containers of the built-in image must not see.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statx};

use crate::mount_table::unescape;

/// Passwords, keys, and data of programs that run pods or containers. Below the root.
const OF_MACHINE: &[&str] = &[
    "etc/shadow",
    "etc/shadow-",
    "etc/gshadow",
    "etc/gshadow-",
    "etc/ipsec.secrets",
    "etc/krb5.keytab",
    "etc/kubernetes",
    "etc/letsencrypt",
    "etc/NetworkManager/system-connections",
    "etc/openvpn",
    "etc/pulselet",
    "etc/rancher",
    "etc/ssl/private",
    "etc/wireguard",
    // Debian keeps a copy of the passwords there.
    "var/backups",
    "var/lib/containerd",
    "var/lib/containers",
    "var/lib/crio",
    "var/lib/docker",
    "var/lib/etcd",
    "var/lib/k0s",
    "var/lib/kubelet",
    "var/lib/pulselet",
    "var/lib/rancher",
];

/// The same of one user, below his home.
const OF_USER: &[&str] = &[
    ".aws",
    ".azure",
    // What was typed, passwords among it.
    ".bash_history",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/containers",
    ".config/gcloud",
    ".config/gh",
    ".docker",
    ".git-credentials",
    ".gnupg",
    ".kube",
    ".local/share/containers",
    ".local/share/keyrings",
    ".local/state/pulselet",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".ssh",
    ".vault-token",
    ".zsh_history",
];

/// Homes that are looked into. Where there are more, none is shown.
const MAX_HOMES: usize = 64;

/// Where agents write down their data directories, one file each, until the machine restarts.
const ANNOUNCED: &str = "/run/pulselet/data-dirs";
const MAX_ANNOUNCED: usize = 1024;
/// Bytes of a path, as the kernel has it.
const MAX_PATH: u64 = 4096;

/// Lets other agents of the machine hide this data directory from their containers.
pub fn announce_data_dir(data_dir: &Path) -> io::Result<()> {
    let path = data_dir.canonicalize()?;
    DirBuilder::new().recursive(true).mode(0o755).create(ANNOUNCED)?;
    let name = format!("{:016x}", crate::runtime::tag(&path));
    fs::write(Path::new(ANNOUNCED).join(name), path.as_os_str().as_bytes())
}

/// Takes a data directory back that is gone, or about to go. Nothing is left of agents that are all gone, except what says
/// how the machine is to be put back: a data directory can go while its bridge stays.
pub fn forget_data_dir(data_dir: &Path) {
    let path = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned());
    let name = format!("{:016x}", crate::runtime::tag(&path));
    // What is not there needs no removing, and what others use stays.
    let _ = fs::remove_file(Path::new(ANNOUNCED).join(name));
    if announced(Path::new(ANNOUNCED)).is_empty()
        && let Some(shared) = Path::new(ANNOUNCED).parent()
    {
        crate::network::tidy_up_forwarding();
        let _ = fs::remove_dir(ANNOUNCED);
        let _ = fs::remove_dir(shared);
    }
}

/// Everything that is there and must not be seen, by its real path.
pub(super) fn hidden_paths(data_dir: &Path) -> Vec<PathBuf> {
    let root = Path::new("/");
    let mut hidden = BTreeSet::new();
    let agents = announced(Path::new(ANNOUNCED));
    for path in agents.iter().map(PathBuf::as_path).chain([data_dir]) {
        hidden.extend(path.canonicalize());
    }
    hidden.extend(secrets_below(root));
    let mounted: Vec<&PathBuf> = hidden.iter().filter(|path| may_be_beneath(path)).collect();
    // The table has some lines for every pod: it is read only where it decides something.
    if !mounted.is_empty() {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = Mounted::parse(&table);
        let beneath: Vec<PathBuf> = mounted
            .iter()
            .filter_map(|path| beneath_mount(path, &mounts))
            .collect();
        hidden.extend(beneath);
    }
    hidden.remove(root);
    hidden.into_iter().collect()
}

/// Data directories that agents have announced. Those that are gone are forgotten.
fn announced(directory: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_ANNOUNCED)
    {
        let mut bytes = Vec::new();
        let read = File::open(entry.path()).and_then(|file| file.take(MAX_PATH).read_to_end(&mut bytes));
        let path = PathBuf::from(OsStr::from_bytes(&bytes));
        if read.is_ok() && path.is_absolute() && path.exists() {
            paths.push(path);
        } else {
            let _ = fs::remove_file(entry.path());
        }
    }
    paths
}

fn secrets_below(root: &Path) -> BTreeSet<PathBuf> {
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    found.extend(OF_MACHINE.iter().filter_map(|path| real_path(&root.join(path))));
    let of_root = root.join("root");
    found.extend(OF_USER.iter().filter_map(|path| real_path(&of_root.join(path))));
    let homes: Vec<PathBuf> = children(&root.join("home")).take(MAX_HOMES + 1).collect();
    if homes.len() > MAX_HOMES {
        found.extend(root.join("home").canonicalize());
    } else {
        found.extend(homes.iter().flat_map(|home| secrets_of_user(home)));
    }
    let keys = children(&root.join("etc/ssh"));
    let is_key = |path: &PathBuf| path.as_os_str().as_bytes().ends_with(b"_key");
    found.extend(keys.filter(is_key).filter_map(|path| path.canonicalize().ok()));
    found
}

/// Most of them are not there, which one look finds out.
fn real_path(path: &Path) -> Option<PathBuf> {
    fs::symlink_metadata(path).ok()?;
    path.canonicalize().ok()
}

/// A user can make links in his home; one that leads out of it would hide what is not his.
fn secrets_of_user(home: &Path) -> Vec<PathBuf> {
    let Ok(real) = home.canonicalize() else {
        return Vec::new();
    };
    let secrets = OF_USER.iter().filter_map(|path| real_path(&home.join(path)));
    secrets
        .filter(|path| path.starts_with(&real) && *path != real)
        .collect()
}

fn children(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// A line of the table of mounts.
struct Mounted<'a> {
    device: &'a str,
    /// The part of the device's file system that is mounted.
    part: Cow<'a, Path>,
    target: Cow<'a, Path>,
}

impl<'a> Mounted<'a> {
    fn parse(table: &'a str) -> Vec<Self> {
        let parse_line = |line: &'a str| {
            let mut words = line.split(' ').skip(2);
            Some(Self {
                device: words.next()?,
                part: unescape(words.next()?),
                target: unescape(words.next()?),
            })
        };
        table.lines().filter_map(parse_line).collect()
    }
}

/// Whether a path may be in a mount, other than the root's, of the root's file system. Of another kind of file system it is
/// not. What the kernel does not say may be.
fn may_be_beneath(path: &Path) -> bool {
    let root = Path::new("/");
    let mount = |path: &Path| {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        StatxFlags::from_bits_retain(found.stx_mask)
            .contains(StatxFlags::MNT_ID)
            .then_some(found.stx_mnt_id)
    };
    let kind = |path: &Path| statfs(path).ok().map(|found| found.f_type);
    match (mount(path), mount(root)) {
        (Some(own), Some(of_root)) if own == of_root => false,
        _ => kind(path).is_none() || kind(path) == kind(root),
    }
}

/// A mount shows the same files a second time if what is mounted is a part of the root file system: where they are in
/// that. The image has no mounts of the machine, so that it would show them there.
fn beneath_mount(path: &Path, mounts: &[Mounted<'_>]) -> Option<PathBuf> {
    let root = mounts.iter().rev().find(|mount| mount.target == Path::new("/"))?;
    let mount = mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.target))
        .max_by_key(|mount| mount.target.components().count())?;
    if mount.device != root.device || mount.target == Path::new("/") {
        return None;
    }
    let place = mount.part.join(path.strip_prefix(&mount.target).ok()?);
    Some(Path::new("/").join(place.strip_prefix(&root.part).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn secrets_are_found_by_their_real_paths() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("is there");
        for directory in [
            "etc/ssh",
            "root",
            "home/u/.ssh",
            "home/u/notes",
            "home/v",
            "real-kube",
            "srv/data",
        ] {
            fs::create_dir_all(root.join(directory)).expect("makes");
        }
        for file in [
            "etc/shadow",
            "etc/passwd",
            "etc/ssh/ssh_host_rsa_key",
            "etc/ssh/ssh_host_rsa_key.pub",
        ] {
            fs::write(root.join(file), "").expect("writes");
        }
        symlink(root.join("real-kube"), root.join("root/.kube")).expect("links");
        // A user must not have the machine's files hidden.
        symlink(root.join("etc"), root.join("home/v/.ssh")).expect("links");
        let found: Vec<String> = secrets_below(&root)
            .iter()
            .map(|path| path.strip_prefix(&root).expect("is below").display().to_string())
            .collect();
        let expected = [
            "etc/shadow",
            "etc/ssh/ssh_host_rsa_key",
            "home/u/.ssh",
            "real-kube",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn of_very_many_homes_none_is_shown() {
        let root = tempfile::tempdir().expect("a directory");
        for number in 0..=MAX_HOMES {
            fs::create_dir_all(root.path().join(format!("home/{number}"))).expect("makes");
        }
        let home = root.path().join("home").canonicalize().expect("is there");
        assert_eq!(secrets_below(root.path()), BTreeSet::from([home]));
    }

    #[test]
    fn announced_directories_that_are_gone_are_forgotten() {
        let home = tempfile::tempdir().expect("a directory");
        fs::write(home.path().join("a"), home.path().as_os_str().as_bytes()).expect("writes");
        for (name, text) in [("b", "/no/such/place"), ("c", "relative"), ("d", "")] {
            fs::write(home.path().join(name), text).expect("writes");
        }
        assert_eq!(announced(home.path()), [home.path()]);
        assert_eq!(fs::read_dir(home.path()).expect("lists").count(), 1);
    }

    #[test]
    fn what_is_mounted_from_the_root_file_system_is_hidden_there_too() {
        let mounts = "1 0 8:1 /os / rw - ext4 /dev/a rw\n\
            2 1 8:1 /os/srv/da\\040ta /var/lib/pulselet rw - ext4 /dev/a rw\n\
            3 1 8:2 / /other rw - ext4 /dev/b rw\n\
            4 1 8:1 /outside /beside rw - ext4 /dev/a rw\n";
        let beneath = |path: &str| beneath_mount(Path::new(path), &Mounted::parse(mounts));
        assert_eq!(beneath("/var/lib/pulselet/x"), Some("/srv/da ta/x".into()));
        for path in ["/var/lib", "/other/x", "/beside/x"] {
            assert_eq!(beneath(path), None, "{path}");
        }
    }
}
