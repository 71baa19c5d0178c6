//! Files of a volume, replaced all at once under a reader's eyes.
//!
//! As a kubelet lays them out, because programs watch for it: the files are in a directory named after the time, the
//! link `..data` leads there, and every visible name is a link through `..data`. A new version is written beside the old
//! one, then one rename swaps the link.
//!
//! What always holds: a reader that goes through `..data` sees one version as a whole; nothing outside the volume's
//! directory is read, written or removed, whatever the paths or the links in place say. Callers take turns.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown, lchown, symlink,
};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use thiserror::Error;

use crate::contents::{VolumeFile, VolumeFiles};

/// The link to the current version.
const DATA: &str = "..data";
/// The same while it is being made.
const NEXT_DATA: &str = "..data_tmp";
/// Names that begin so are not the manifest's to use.
const RESERVED: &str = "..";
/// Bytes of a name and of a path, as Linux has them.
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4096;
/// Tries to find a name that is not taken. Two versions within a nanosecond do not happen.
const MAX_TRIES: u32 = 16;
/// Everyone may look into the directories; the files have their own modes.
const DIRECTORY_MODE: u32 = 0o755;
/// What a directory that belongs to the pod's group has besides.
const GROUP_DIRECTORY_MODE: u32 = 0o2550;

#[derive(Debug, Error)]
pub(crate) enum WriteError {
    #[error("invalid path {path:?}: {why}")]
    Path { path: String, why: &'static str },
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot remove {path}: {source}", path = path.display())]
    Remove { path: PathBuf, source: io::Error },
}

/// Whether a version is in place.
pub(crate) fn is_written(volume: &Path) -> bool {
    current(volume).is_some_and(|version| version.is_dir())
}

/// Makes the volume's directory hold exactly these files. True if anything had to change.
pub(crate) fn write(volume: &Path, files: &VolumeFiles) -> Result<bool, WriteError> {
    for path in files.keys() {
        check_path(path).map_err(|why| WriteError::Path {
            path: path.clone(),
            why,
        })?;
    }
    let group = files.values().find_map(|file| file.group);
    make_directory(volume, group).map_err(write_error(volume))?;
    let old = current(volume);
    let changed = !old.is_some_and(|old| holds(&old, files));
    if changed {
        let version = new_version(volume, group)?;
        for (path, file) in files {
            let target = version.join(path);
            write_file(&version, Path::new(path), file, group).map_err(write_error(&target))?;
        }
        swap(volume, &version)?;
    }
    let names: BTreeSet<&str> = files.keys().map(|path| first_part(path)).collect();
    for name in &names {
        show(volume, name)?;
    }
    tidy(volume, &names)?;
    Ok(changed)
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_owned();
    move |source| WriteError::Write { path, source }
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("it is empty");
    }
    if path.starts_with('/') {
        return Err("it is not relative");
    }
    if path.len() > MAX_PATH {
        return Err("it is too long");
    }
    if path.contains('\0') {
        return Err("it has a zero byte");
    }
    for part in path.split('/') {
        if part == ".." {
            return Err("it contains '..'");
        }
        if part.is_empty() || part == "." {
            return Err("it has an empty part");
        }
        if part.len() > MAX_NAME {
            return Err("it has a name that is too long");
        }
    }
    if path.starts_with(RESERVED) {
        return Err("it starts with '..'");
    }
    Ok(())
}

fn first_part(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

/// The directory of the current version; none if the link is not one of ours.
fn current(volume: &Path) -> Option<PathBuf> {
    let target = fs::read_link(volume.join(DATA)).ok()?;
    let name = target.to_str()?;
    let is_ours = name.starts_with(RESERVED) && name.len() > RESERVED.len() && !name.contains('/');
    is_ours.then(|| volume.join(name))
}

/// Whether a version has exactly these files. What cannot be read does not count as equal.
fn holds(version: &Path, files: &VolumeFiles) -> bool {
    let mut found = 0;
    let mut left = vec![version.to_owned()];
    // More directories than the paths name are not ours, and need not all be looked at.
    let mut directories = files.keys().map(|path| path.matches('/').count()).sum::<usize>() + 1;
    while let Some(directory) = left.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            return false;
        };
        let Some(rest) = directories.checked_sub(1) else {
            return false;
        };
        directories = rest;
        for entry in entries {
            let Ok(entry) = entry else { return false };
            if found > files.len() {
                return false;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => left.push(entry.path()),
                Ok(kind) if kind.is_file() => found += 1,
                Ok(_) | Err(_) => return false,
            }
        }
    }
    let same = |(path, file): (&String, &VolumeFile)| is_same(&version.join(path), file).unwrap_or(false);
    found == files.len() && files.iter().all(same)
}

/// A container may have put something else there: links are not followed, and pipes not waited for.
fn is_same(path: &Path, wanted: &VolumeFile) -> io::Result<bool> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let size = u64::try_from(wanted.data.len()).unwrap_or(u64::MAX);
    if metadata.len() != size || metadata.mode() & 0o7777 != wanted.mode {
        return Ok(false);
    }
    let mut data = Vec::with_capacity(wanted.data.len());
    file.take(size + 1).read_to_end(&mut data)?;
    Ok(data == wanted.data)
}

fn new_version(volume: &Path, group: Option<u32>) -> Result<PathBuf, WriteError> {
    let mut tries = 0;
    loop {
        let now = Timestamp::now();
        let name = now.strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string();
        let path = volume.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {
                open_directory(&path, group).map_err(write_error(&path))?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(write_error(&path)(error)),
        }
    }
}

fn make_directory(path: &Path, group: Option<u32>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    open_directory(path, group)
}

/// Sets the mode that was meant, whatever the process's mask is.
fn open_directory(path: &Path, group: Option<u32>) -> io::Result<()> {
    give(lchown(path, None, group), group)?;
    let mode = DIRECTORY_MODE | group.map_or(0, |_| GROUP_DIRECTORY_MODE);
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Only root can give things away. An agent that is not root runs everything as itself.
pub(crate) fn give(result: io::Result<()>, to: Option<u32>) -> io::Result<()> {
    match result {
        Err(error) if to.is_none() || error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

/// Nothing is in the version yet but what this made, so no link can lead astray.
fn write_file(version: &Path, path: &Path, file: &VolumeFile, group: Option<u32>) -> io::Result<()> {
    let mut directory = version.to_owned();
    for part in path.parent().into_iter().flat_map(Path::components) {
        directory.push(part);
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => open_directory(&directory, group)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    let mut opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(version.join(path))?;
    opened.write_all(&file.data)?;
    give(fchown(&opened, file.user, file.group), file.user.or(file.group))?;
    opened.set_permissions(fs::Permissions::from_mode(file.mode))
}

/// Makes a version the current one, in one step.
fn swap(volume: &Path, version: &Path) -> Result<(), WriteError> {
    let next = volume.join(NEXT_DATA);
    // Left by an agent that died here.
    remove(&next)?;
    let data = volume.join(DATA);
    if fs::symlink_metadata(&data).is_ok_and(|it| it.is_dir()) {
        remove(&data)?;
    }
    let name = version.file_name().unwrap_or_default();
    symlink(name, &next).map_err(write_error(&next))?;
    fs::rename(&next, &data).map_err(write_error(&data))
}

/// Makes a name of the current version visible.
fn show(volume: &Path, name: &str) -> Result<(), WriteError> {
    let link = volume.join(name);
    let target = Path::new(DATA).join(name);
    if fs::read_link(&link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    remove(&link)?;
    symlink(&target, &link).map_err(write_error(&link))
}

/// Removes names that are not in the current version, and versions that are not current.
fn tidy(volume: &Path, names: &BTreeSet<&str>) -> Result<(), WriteError> {
    let version = current(volume);
    let entries = fs::read_dir(volume).map_err(write_error(volume))?;
    for entry in entries {
        let entry = entry.map_err(write_error(volume))?;
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| names.contains(name));
        let is_current = version.as_ref().is_some_and(|version| *version == entry.path());
        if !is_named && !is_current && name != DATA {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes whatever is there, never what a link leads to.
fn remove(path: &Path) -> Result<(), WriteError> {
    let failed = |source| WriteError::Remove {
        path: path.to_owned(),
        source,
    };
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> VolumeFiles {
        let file = |text: &str| VolumeFile {
            data: text.as_bytes().to_vec(),
            mode: 0o640,
            user: None,
            group: None,
        };
        pairs
            .iter()
            .map(|(path, text)| ((*path).to_owned(), file(text)))
            .collect()
    }

    /// What a container sees: every name that is not reserved, and the text behind it.
    fn seen(volume: &Path) -> Vec<(String, String)> {
        fn walk(directory: &Path, prefix: &str, out: &mut Vec<(String, String)>) {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                if name.starts_with("..") {
                    continue;
                }
                let path = format!("{prefix}{name}");
                if entry.path().is_dir() {
                    walk(&entry.path(), &format!("{path}/"), out);
                } else {
                    out.push((path, fs::read_to_string(entry.path()).unwrap()));
                }
            }
        }
        let mut out = Vec::new();
        walk(volume, "", &mut out);
        out.sort();
        out
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_new_version_takes_the_place_of_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("v");
        assert!(!is_written(&volume));
        let first = [("a", "1"), ("deep/er/b", "2"), ("gone", "3")];
        assert!(write(&volume, &files(&first)).unwrap());
        assert!(is_written(&volume));
        assert_eq!(seen(&volume), owned(&first));
        let version = current(&volume).unwrap();
        assert!(!write(&volume, &files(&first)).unwrap(), "nothing has changed");
        assert_eq!(current(&volume).unwrap(), version);
        let second = [("a", "one"), ("deep/c", "4")];
        assert!(write(&volume, &files(&second)).unwrap());
        assert_eq!(seen(&volume), owned(&second));
        assert!(!version.exists());
        let mode = fs::metadata(volume.join("a")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o640);
        assert!(write(&volume, &files(&[])).unwrap());
        assert_eq!(seen(&volume), []);
        assert!(is_written(&volume));
    }

    #[test]
    fn a_reader_never_sees_half_a_version() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("v");
        write(&volume, &files(&[("a", "0"), ("b", "0")])).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rounds = 0;
                while rounds == 0 || !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Through the directory that was current at one moment, as careful programs do.
                    let version = volume.join(fs::read_link(volume.join(DATA)).unwrap());
                    let read = |name| fs::read_to_string(version.join(name)).ok();
                    if let (Some(a), Some(b)) = (read("a"), read("b")) {
                        assert_eq!(a, b);
                        rounds += 1;
                    }
                    assert!(
                        fs::symlink_metadata(volume.join("a")).is_ok(),
                        "a name never goes away"
                    );
                }
                rounds
            });
            for round in 1..200 {
                let text = round.to_string();
                write(&volume, &files(&[("a", &text), ("b", &text)])).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(rounds > 0);
    }

    #[test]
    fn hostile_paths_are_refused_and_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("v");
        write(&volume, &files(&[("a", "1")])).unwrap();
        let long = "x".repeat(256);
        let paths = [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            "..data",
            "..x/y",
            "./a",
            "a//b",
            "a/",
            "a/.",
            "nul\0",
            &long,
        ];
        for path in paths {
            let result = write(&volume, &files(&[("b", "2"), (path, "x")]));
            assert!(
                matches!(result, Err(WriteError::Path { .. })),
                "{path}: {result:?}"
            );
        }
        // A file cannot be a directory too.
        let result = write(&volume, &files(&[("b", "2"), ("b/c", "3")]));
        assert!(matches!(result, Err(WriteError::Write { .. })));
        assert_eq!(seen(&volume), owned(&[("a", "1")]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        // What a failed attempt left goes with the next.
        write(&volume, &files(&[("a", "2")])).unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 3);
    }

    #[test]
    fn links_in_place_lead_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("a"), "precious").unwrap();
        let volume = directory.path().join("v");
        fs::create_dir(&volume).unwrap();
        for name in ["..data", "..data_tmp", "a", "deep", "left"] {
            symlink(&outside, volume.join(name)).unwrap();
        }
        fs::create_dir(volume.join("b")).unwrap();
        let wanted = [("a", "1"), ("b", "2"), ("deep/a", "3")];
        write(&volume, &files(&wanted)).unwrap();
        assert_eq!(seen(&volume), owned(&wanted));
        assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        // A version in which a file was made a link is not the same any more.
        let version = current(&volume).unwrap();
        fs::remove_file(version.join("a")).unwrap();
        symlink(outside.join("a"), version.join("a")).unwrap();
        assert!(write(&volume, &files(&wanted)).unwrap());
        assert_eq!(seen(&volume), owned(&wanted));
    }
}
