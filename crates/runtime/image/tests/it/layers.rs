//! Layers, well-meant and hostile: what they become on disk, and that nothing changes elsewhere.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use pulselet_image::{Image, LayerError, Limits, LoadError, TarError, UnpackError};
use tar::EntryType;

use crate::builder::{Fixture, Layer, root};

fn unpack_error(layers: Vec<Layer>) -> UnpackError {
    unpack_error_in(&Fixture::new(), layers)
}

/// Loading must fail while unpacking, and leave nothing behind.
fn unpack_error_in(fixture: &Fixture, layers: Vec<Layer>) -> UnpackError {
    let before = fixture.paths();
    let error = fixture.load(layers).expect_err("the layer is refused");
    let after: Vec<_> = fixture
        .paths()
        .into_iter()
        .filter(|path| !path.ends_with("images/lock"))
        .collect();
    assert_eq!(
        after,
        before
            .into_iter()
            .filter(|path| !path.ends_with("images/lock"))
            .collect::<Vec<_>>()
    );
    assert_eq!(fixture.store.list().unwrap(), []);
    match error {
        LoadError::Layer(LayerError::Unpack { source, .. }) => source,
        error => panic!("not an error of unpacking: {error:?}"),
    }
}

/// The layers of an image, mounted as a container would see them.
struct Mounted {
    target: PathBuf,
    _directory: tempfile::TempDir,
}

impl Mounted {
    fn new(image: &Image) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("root");
        let empty = directory.path().join("empty");
        fs::create_dir(&target).unwrap();
        fs::create_dir(&empty).unwrap();
        // An overlay of one layer is none; the empty one changes nothing.
        let lower: Vec<_> = image
            .layers
            .iter()
            .rev()
            .map(|layer| layer.display().to_string())
            .collect();
        let options = format!("lowerdir={}:{}", lower.join(":"), empty.display());
        let status = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&target)
            .status()
            .unwrap();
        assert!(status.success(), "the layers can be mounted");
        Self {
            target,
            _directory: directory,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.target.join(path)
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path(path))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.target).status();
    }
}

#[test]
fn what_a_layer_says_is_what_is_there() {
    if !root() {
        return;
    }
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let image = Fixture::new();
    let image = (
        image
            .load(vec![
                Layer::new()
                    .dir("./", 0o755)
                    .dir("bin/", 0o755)
                    .entry(EntryType::Regular, "bin/su", "", b"program", 0o4755)
                    .pax(&[
                        ("SCHILY.xattr.security.capability", &capability),
                        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
                        ("SCHILY.xattr.user.overlay.opaque", b"y"),
                        ("uid", b"1234"),
                        ("mtime", b"1500000000.5"),
                    ])
                    .file("bin/ping", "ping")
                    .symlink("bin/link", "su")
                    .hard_link("bin/hard", "bin/su")
                    .entry(EntryType::Fifo, "pipe", "", b"", 0o620)
                    .entry(EntryType::Char, "null", "", b"", 0o666)
                    .file(&format!("{}/deep", "long-name/".repeat(20)), "deep"),
            ])
            .unwrap(),
        image,
    );
    let layer = image.0.layers[0].as_path();
    let metadata = |path: &str| fs::symlink_metadata(layer.join(path)).unwrap();
    assert_eq!(metadata("bin/su").permissions().mode() & 0o7777, 0o4755);
    assert_eq!(metadata("bin/su").ino(), metadata("bin/hard").ino());
    assert_eq!(fs::read_link(layer.join("bin/link")).unwrap(), Path::new("su"));
    assert_eq!(
        (metadata("bin/ping").uid(), metadata("bin/ping").mtime()),
        (1234, 1_500_000_000)
    );
    assert_eq!(
        metadata("bin").mtime(),
        1_600_000_000,
        "directories keep their time"
    );
    assert!(metadata("pipe").file_type().is_fifo());
    assert_eq!(metadata("pipe").permissions().mode() & 0o777, 0o620);
    assert!(!layer.join("null").exists(), "no devices");
    assert!(layer.join("long-name/".repeat(20)).join("deep").exists());
    let attribute = |name: &str| {
        let mut value = [0; 64];
        rustix::fs::lgetxattr(layer.join("bin/ping"), name, &mut value).map(|length| value[..length].to_vec())
    };
    assert_eq!(attribute("security.capability").unwrap(), capability);
    assert!(
        attribute("trusted.overlay.redirect").is_err(),
        "it would change what is mounted"
    );
    assert!(attribute("user.overlay.opaque").is_err());
    assert_eq!(image.0.size, 7 + 4 + 4);
}

#[test]
fn nobody_but_root_enters_the_store() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.load(vec![Layer::new().file("a", "a")]).unwrap();
    let layers = image.layers[0].ancestors().nth(2).unwrap();
    assert_eq!(fs::metadata(layers).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn whiteouts_hide_what_is_below() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let base = || {
        Layer::new()
            .file("gone", "")
            .file("kept", "below")
            .file("dir/gone", "")
            .file("dir/kept", "")
            .file("opaque/old", "")
            .file("opaque/sub/old", "")
            .file("replaced/old", "")
            .file("a/b/c/old", "")
    };
    let image = fixture
        .load(vec![
            base(),
            Layer::new()
                .file(".wh.gone", "")
                .file("dir/.wh.gone", "")
                // In any order with the content of its directory.
                .file("opaque/sub/new", "")
                .file("opaque/.wh..wh..opq", "")
                .file("opaque/new", "")
                .file(".wh.replaced", "")
                .file("replaced/new", "")
                .file(".wh.never", "")
                .file("nowhere/.wh.never", "")
                .file(".wh..wh.plnk", ""),
        ])
        .unwrap();
    let mounted = Mounted::new(&image);
    assert_eq!(mounted.names(""), ["a", "dir", "kept", "opaque", "replaced"]);
    assert_eq!(mounted.names("dir"), ["kept"]);
    assert_eq!(mounted.names("opaque"), ["new", "sub"]);
    assert_eq!(mounted.names("opaque/sub"), ["new"]);
    assert_eq!(mounted.names("replaced"), ["new"]);
    drop(mounted);

    let image = fixture
        .load(vec![
            base(),
            Layer::new()
                .file("new", "")
                .file(".wh..wh..opq", "")
                .file("a/new", ""),
        ])
        .unwrap();
    let mounted = Mounted::new(&image);
    assert_eq!(mounted.names(""), ["a", "new"], "at the root too");
    assert_eq!(mounted.names("a"), ["new"]);
}

#[test]
fn a_whiteout_spares_its_own_layer() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture
        .load(vec![
            Layer::new().file("file", "old").file("dir/old", ""),
            Layer::new()
                .file("file", "new")
                .file(".wh.file", "")
                .file("dir/new", "")
                .file(".wh.dir", ""),
        ])
        .unwrap();
    let mounted = Mounted::new(&image);
    assert_eq!(mounted.read("file").as_deref(), Some("new"));
    assert_eq!(mounted.names("dir"), ["new"]);
}

#[test]
fn what_a_layer_does_not_describe_stays_as_below() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture
        .load(vec![
            Layer::new()
                .pax(&[("uid", b"99"), ("gid", b"98")])
                .dir("home/", 0o1770)
                .file("usr/lib/old", "old")
                .symlink("lib", "usr/lib")
                .file("linked", "content"),
            Layer::new()
                .file("home/file", "")
                .file("lib/new", "new")
                .hard_link("copy", "linked"),
        ])
        .unwrap();
    let mounted = Mounted::new(&image);
    let home = fs::metadata(mounted.path("home")).unwrap();
    assert_eq!((home.uid(), home.gid(), home.mode() & 0o7777), (99, 98, 0o1770));
    assert_eq!(
        mounted.names("usr/lib"),
        ["new", "old"],
        "a link to a directory is followed"
    );
    assert_eq!(mounted.read("lib/new").as_deref(), Some("new"));
    assert_eq!(
        mounted.read("copy").as_deref(),
        Some("content"),
        "of a file of another layer"
    );
}

#[test]
fn kinds_change_between_and_within_layers() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture
        .load(vec![
            Layer::new()
                .file("dir/inside", "")
                .file("file", "")
                .symlink("link", "dir"),
            Layer::new()
                .file("dir", "now a file")
                .dir("file/", 0o755)
                .file("file/inside", "1")
                .file("file/inside", "2")
                .dir("link/", 0o755)
                .file("link/inside", "")
                .file("twice/a/b", "")
                .file("twice", "now a file")
                .symlink("again", "twice")
                .file("again", "no longer a link"),
        ])
        .unwrap();
    let mounted = Mounted::new(&image);
    assert_eq!(mounted.read("dir").as_deref(), Some("now a file"));
    assert_eq!(
        mounted.read("file/inside").as_deref(),
        Some("2"),
        "the last one counts"
    );
    assert_eq!(mounted.names("link"), ["inside"]);
    assert_eq!(mounted.read("twice").as_deref(), Some("now a file"));
    assert_eq!(mounted.read("again").as_deref(), Some("no longer a link"));
}

#[test]
fn paths_with_parents_are_refused() {
    if !root() {
        return;
    }
    for path in ["../../escaped", "a/../../escaped", "..", "/../escaped", "a/.."] {
        let error = unpack_error(vec![Layer::new().file(path, "x")]);
        assert!(
            matches!(error, UnpackError::InvalidPath { .. }),
            "{path}: {error}"
        );
    }
    for path in [".wh..", ".wh...", ".wh."] {
        let error = unpack_error(vec![Layer::new().file(path, "")]);
        assert!(
            matches!(error, UnpackError::InvalidPath { .. }),
            "{path}: {error}"
        );
    }
    let error = unpack_error(vec![Layer::new().hard_link("a", "../../../../etc/passwd")]);
    assert!(matches!(error, UnpackError::InvalidPath { .. }), "{error}");
    let error = unpack_error(vec![Layer::new().pax(&[("path", b"a\0b")]).file("a", "")]);
    assert!(matches!(error, UnpackError::InvalidPath { .. }), "{error}");
}

#[test]
fn links_do_not_lead_out() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let outside = fixture.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "untouched").unwrap();
    let target = outside.display().to_string();
    let inside = target.trim_start_matches('/');
    let up = format!("{}{inside}", "../".repeat(30));
    for link in [target.as_str(), up.as_str()] {
        let image = fixture
            .load(vec![
                Layer::new()
                    .symlink("door", link)
                    .file("door/victim", "overwritten")
                    .file("door/new", "")
                    .dir("door/dir/", 0o777),
                // Through a link of a layer below.
                Layer::new()
                    .file("door/later", "")
                    .file("door/.wh.victim", "")
                    .file("/absolute", ""),
            ])
            .unwrap();
        assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was added");
        let mounted = Mounted::new(&image);
        assert_eq!(
            mounted.names(inside),
            ["dir", "later", "new"],
            "it all went into the image"
        );
        assert!(mounted.path("absolute").exists() && !Path::new("/absolute").exists());
        fixture
            .store
            .remove("test:1", &std::collections::BTreeSet::default())
            .unwrap();
    }
}

#[test]
fn hard_links_do_not_lead_out() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    fs::write(fixture.directory.path().join("victim"), "secret").unwrap();
    let victim = fixture.directory.path().join("victim").display().to_string();
    let parent = fixture.directory.path().display().to_string();
    let attempts = [
        Layer::new().hard_link("stolen", &victim),
        Layer::new()
            .symlink("door", &parent)
            .hard_link("stolen", "door/victim"),
        Layer::new().hard_link("dir", "."),
        Layer::new().dir("dir/", 0o755).hard_link("other", "dir"),
        Layer::new().file("own", "").hard_link("own", "own"),
    ];
    for layer in attempts {
        let error = unpack_error_in(&fixture, vec![layer]);
        assert!(matches!(error, UnpackError::LinkTarget { .. }), "{error}");
    }
    // A link to a link is the link, not what it points to.
    let image = fixture
        .load(vec![
            Layer::new()
                .symlink("door", &victim)
                .hard_link("stolen", "door")
                .file("stolen", "mine"),
        ])
        .unwrap();
    assert_eq!(
        fs::read_to_string(image.layers[0].join("stolen")).unwrap(),
        "mine"
    );
    assert_eq!(fs::read_to_string(victim).unwrap(), "secret");
}

#[test]
fn endless_links_and_depths_are_refused() {
    if !root() {
        return;
    }
    let error = unpack_error(vec![
        Layer::new().symlink("a", "b").symlink("b", "a").file("a/x", ""),
    ]);
    assert!(matches!(error, UnpackError::LinkLoop { .. }), "{error}");
    let error = unpack_error(vec![Layer::new().symlink("a", "a/a").file("a/x", "")]);
    assert!(matches!(error, UnpackError::LinkLoop { .. }), "{error}");
    let error = unpack_error(vec![Layer::new().file(&"d/".repeat(300), "")]);
    assert!(matches!(error, UnpackError::TooDeep), "{error}");
    let error = unpack_error(vec![Layer::new().file("file", "").file("file/below", "")]);
    assert!(matches!(error, UnpackError::NotADirectory { .. }), "{error}");
    let error = unpack_error(vec![Layer::new().entry(EntryType::new(b'Z'), "odd", "", b"", 0)]);
    assert!(matches!(error, UnpackError::UnknownKind { .. }), "{error}");
}

#[test]
fn sizes_and_counts_are_bounded() {
    if !root() {
        return;
    }
    let limits = Limits {
        archive_bytes: 1 << 20,
        layer_bytes: 10_000,
        layer_entries: 10,
    };
    let fixture = Fixture::with_limits(limits);
    let fits = |count: usize| (0..count).fold(Layer::new(), |layer, n| layer.file(&n.to_string(), ""));
    fixture.load(vec![fits(10)]).unwrap();
    fixture
        .store
        .remove("test:1", &std::collections::BTreeSet::default())
        .unwrap();
    let error = unpack_error_in(&fixture, vec![fits(11)]);
    assert!(
        matches!(error, UnpackError::TooManyEntries { limit: 10 }),
        "{error}"
    );
    let error = unpack_error_in(&fixture, vec![Layer::new().file("a", &"x".repeat(10_001))]);
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
    let halves = Layer::new()
        .file("a", &"x".repeat(6000))
        .file("b", &"x".repeat(6000));
    let error = unpack_error_in(&fixture, vec![halves]);
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
    // A size that the stream does not hold.
    let claimed = Layer::new().raw(EntryType::Regular, b"huge", "", b"", &|header| {
        header.set_size(u64::MAX >> 1);
    });
    let error = unpack_error_in(&fixture, vec![claimed]);
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
    let overflowing = Layer::new().raw(EntryType::Regular, b"huge", "", b"", &|header| {
        header.set_size(u64::MAX);
    });
    let error = unpack_error_in(&fixture, vec![overflowing]);
    assert!(matches!(error, UnpackError::Tar(TarError::Header(_))), "{error}");
    let sparse = Layer::new()
        .pax(&[("GNU.sparse.realsize", b"99999999999")])
        .file("a", "");
    let error = unpack_error_in(&fixture, vec![sparse]);
    assert!(matches!(error, UnpackError::Tar(TarError::Sparse)), "{error}");
}

#[test]
fn owners_out_of_range_are_refused() {
    if !root() {
        return;
    }
    for uid in [&b"4294967295"[..], b"4294967296", b"18446744073709551615"] {
        for layer in [
            Layer::new().pax(&[("uid", uid)]).file("a", ""),
            Layer::new().pax(&[("gid", uid)]).symlink("a", "b"),
        ] {
            unpack_error(vec![layer]);
        }
    }
}
