//! What fuzzers call, and nobody else: these functions take what an archive or a registry says the way a pull takes it.
//! Fuzzers look for panics, hangs, endless memory, and for what is written outside of a layer; the answers do not matter.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tar::{EntryType, Header};

use crate::compression;
use crate::digest::Digest;
use crate::image::{ConfigFile, Manifest};
use crate::platform::{self, Platform};
use crate::reference::Reference;
use crate::registry;
use crate::store::ImageStore;
use crate::tarball::Tarball;
use crate::unpack::{self, Limits};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[
    ("image_archive", load_archive),
    ("image_documents", read_documents),
    ("image_reference", parse_reference),
    ("layer", unpack_layer),
    ("layer_entries", unpack_entries),
    ("registry_answer", read_registry_answer),
];

/// Small enough that a fuzzer's run fits in memory.
const LIMITS: Limits = Limits {
    archive_bytes: 1 << 20,
    layer_bytes: 1 << 20,
    layer_entries: 256,
};
/// Bytes of a stream that are decompressed: a bomb is as long as its reader lets it be.
const MAX_PLAIN: u64 = 8 << 20;
/// Layers that are put on top of each other.
const MAX_STACK: usize = 3;
/// What of the outside must stay as it is.
const SECRET: &str = "kept";

/// A directory of this run's own: layers in it, and beside them a file that no layer may touch.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pulselet-fuzz-{}-{number}", std::process::id());
        let scratch = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(scratch.outside())?;
        fs::write(scratch.outside().join("secret"), SECRET)?;
        Ok(scratch)
    }

    fn outside(&self) -> PathBuf {
        self.0.join("outside")
    }

    fn layer(&self, number: usize) -> PathBuf {
        self.0.join(format!("layer{number}"))
    }

    /// Panics if a layer reached what is beside it.
    fn check(&self, layers: usize) {
        let names = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
        let secret = self.outside().join("secret");
        let metadata = fs::symlink_metadata(&secret).expect("the file outside is still there");
        assert_eq!(
            fs::read_to_string(&secret).ok().as_deref(),
            Some(SECRET),
            "it says what it said"
        );
        assert_eq!(
            (metadata.nlink(), metadata.mode() & 0o7000),
            (1, 0),
            "it has one name and no new mode"
        );
        assert_eq!(names(&self.outside()), 1, "nothing is put beside it");
        assert_eq!(names(&self.0), layers + 1, "nothing is put beside the layers");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Unpacks the bytes as a layer, compressed or not.
pub fn unpack_layer(bytes: &[u8]) {
    // Headers have checksums, which a fuzzer does not guess: what is not compressed gets right ones.
    let summed = with_checksums(bytes);
    for bytes in [bytes, &summed] {
        let Ok(scratch) = Scratch::new() else { return };
        let root = scratch.layer(0);
        let Ok(()) = fs::create_dir(&root) else { return };
        if let Ok(plain) = compression::decompress(bytes) {
            let _ = unpack::unpack(plain.take(MAX_PLAIN), &root, &[] as &[&Path], LIMITS);
        }
        scratch.check(1);
    }
}

/// Unpacks layers whose entries are well formed and mean harm.
pub fn unpack_entries(bytes: &[u8]) {
    let Ok(scratch) = Scratch::new() else { return };
    let outside = scratch.outside();
    let mut choices = Choices(bytes);
    let mut below = Vec::new();
    for number in 0..MAX_STACK {
        let layer = hostile_layer(&mut choices, &outside);
        let root = scratch.layer(number);
        let Ok(()) = fs::create_dir(&root) else { return };
        let unpacked = unpack::unpack(layer.as_slice(), &root, &below, LIMITS);
        below.push(root);
        scratch.check(below.len());
        if unpacked.is_err() {
            return;
        }
    }
}

/// Loads an archive: the bytes themselves, and one that is made of the files that they hold.
pub fn load_archive(bytes: &[u8]) {
    for archive in [with_checksums(bytes), layout_of(bytes)] {
        let Ok(scratch) = Scratch::new() else { return };
        if let Ok(store) = ImageStore::open_with(scratch.layer(0), LIMITS) {
            let _ = store.load(archive.as_slice(), None);
        }
        scratch.check(1);
    }
}

/// Reads a manifest, an index and a configuration.
pub fn read_documents(bytes: &[u8]) {
    let config = ConfigFile::parse(bytes);
    if let Ok(config) = &config {
        assert_eq!(config.chain_ids().len(), config.diff_ids.len());
        let _ = config.platform().runs_on(&Platform::host());
    }
    match Manifest::parse(bytes) {
        Ok(Manifest::Image(manifest)) => {
            let _ = config.map(|config| manifest.check(&config));
        }
        Ok(Manifest::Index(entries)) => {
            let _ = platform::select(&entries, &Platform::host());
            let _ = platform::offered(&entries);
        }
        Err(_) => {}
    }
}

/// Parses a name, which has to mean the same when it is written and read again.
pub fn parse_reference(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(reference) = text.parse::<Reference>() {
        let again = reference.to_string().parse();
        assert_eq!(again.as_ref(), Ok(&reference), "{text:?}");
        let familiar = reference.familiar().parse();
        assert_eq!(familiar.as_ref(), Ok(&reference), "{text:?}");
        for part in [reference.registry(), reference.repository()] {
            assert!(
                !part.split('/').any(|part| matches!(part, "" | "." | "..")),
                "{text:?}"
            );
        }
    }
}

/// Reads what a registry says in its headers, in a token and in an error.
pub fn read_registry_answer(bytes: &[u8]) {
    registry::fuzz_answer(bytes);
}

/// Choices that a fuzzer makes, byte by byte; when there are none left, it is the first each time.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(*first)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.next() % all.len()]
    }

    fn path(&mut self, outside: &Path) -> Vec<u8> {
        const PARTS: [&str; 16] = [
            "a",
            "b",
            "c",
            "..",
            ".",
            "",
            "/",
            ".wh.a",
            ".wh.b",
            ".wh..wh..opq",
            ".wh...",
            ".wh.",
            "outside",
            "secret",
            ".wh..wh.x",
            "$",
        ];
        let mut path = String::new();
        for _ in 0..=self.next() % 5 {
            let part = match self.of(&PARTS) {
                "$" => outside.to_string_lossy().into_owned(),
                part => part.to_owned(),
            };
            path.push_str(&part);
            path.push('/');
        }
        if !self.next().is_multiple_of(4) {
            path.pop();
        }
        path.into_bytes()
    }
}

fn hostile_layer(choices: &mut Choices<'_>, outside: &Path) -> Vec<u8> {
    const KINDS: [EntryType; 8] = [
        EntryType::Directory,
        EntryType::Regular,
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Fifo,
        EntryType::Char,
        EntryType::Symlink,
        EntryType::Link,
    ];
    let mut layer = Vec::new();
    for _ in 0..choices.next() % 24 {
        let kind = choices.of(&KINDS);
        let path = choices.path(outside);
        let link = if matches!(kind, EntryType::Symlink | EntryType::Link) {
            choices.path(outside)
        } else {
            Vec::new()
        };
        for (long, text) in [(EntryType::GNULongName, &path), (EntryType::GNULongLink, &link)] {
            add_entry(&mut layer, long, 0, text);
        }
        let content: &[u8] = if kind == EntryType::Regular {
            b"changed"
        } else {
            b""
        };
        add_entry(
            &mut layer,
            kind,
            choices.of(&[0o644, 0o755, 0o4777, 0o1700, 0]),
            content,
        );
    }
    layer
}

fn add_entry(archive: &mut Vec<u8>, kind: EntryType, mode: u32, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

/// The same archive with a right checksum in each header that is found on the way from entry to entry.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut summed = bytes.to_vec();
    let mut at = 0;
    while let Some(block) = summed.get_mut(at..at + 512) {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
        let size = header.entry_size().unwrap_or(0).min(bytes.len() as u64);
        let size = usize::try_from(size).unwrap_or(0);
        at += 512 + size.next_multiple_of(512);
    }
    summed
}

/// An archive of the pieces between zeros: the last one is the index, or docker's list, the others are blobs. `@N` in a
/// piece stands for the digest of piece N before it.
fn layout_of(bytes: &[u8]) -> Vec<u8> {
    let pieces: Vec<&[u8]> = bytes.split(|byte| *byte == 0).take(10).collect();
    let mut archive = Vec::new();
    let mut digests: Vec<String> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let mut text = String::from_utf8_lossy(piece).into_owned();
        for (number, digest) in digests.iter().enumerate() {
            text = text.replace(&format!("@{number}"), digest);
        }
        let digest = Digest::of(text.as_bytes()).hex();
        let name = match (index + 1 == pieces.len(), text.starts_with('[')) {
            (true, true) => "manifest.json".to_owned(),
            (true, false) => "index.json".to_owned(),
            (false, _) => format!("blobs/sha256/{digest}"),
        };
        add_entry(&mut archive, EntryType::GNULongName, 0, name.as_bytes());
        add_entry(&mut archive, EntryType::Regular, 0o644, text.as_bytes());
        digests.push(digest);
    }
    // It is read back as it was written.
    debug_assert!(Tarball::new(archive.as_slice()).next_entry().is_ok());
    archive
}
