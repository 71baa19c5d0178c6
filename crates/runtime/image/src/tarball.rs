//! Reads tar streams from outside, one entry at a time.
//!
//! Everything that is held in memory is bounded, whatever the stream claims: extended headers have a limit, contents are
//! never collected. Understood are ustar, GNU long names and PAX records; sparse files are refused, since no image
//! builder writes them and their claimed size costs the sender nothing.

use std::io::{self, Read};
use std::ops::Range;

use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Bytes of one extended header: room for a path, a link and attributes of the size the kernel takes (64 KiB each).
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Extended headers in front of one entry; well-formed streams have up to three.
const MAX_EXTENSIONS: usize = 16;

// Where a header has its numbers.
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;

#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("cannot read the archive: {0}")]
    Read(#[source] io::Error),
    #[error("the archive is cut off")]
    Truncated,
    #[error("the archive has a broken header: {0}")]
    Header(&'static str),
    #[error("the archive has an extended header of more than {MAX_EXTENSION_BYTES} bytes")]
    ExtensionTooLong,
    #[error("the archive has too many extended headers in a row")]
    TooManyExtensions,
    #[error("sparse files are not supported")]
    Sparse,
}

impl TarError {
    pub(crate) fn reading(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Read(error),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    Device,
    Unknown,
}

/// The header of an entry, with what the extended headers before it say.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    /// Target of a hard link or symbolic link.
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    /// Bytes of content that follow.
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds since 1970.
    pub(crate) mtime: i64,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A tar stream. The content of an entry is read through [`Self::content`]; what is not read of it is skipped.
#[derive(Debug)]
pub(crate) struct Tarball<R> {
    reader: R,
    /// Of the current entry.
    content_left: u64,
    padding_left: u64,
}

impl<R: Read> Tarball<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            content_left: 0,
            padding_left: 0,
        }
    }

    /// The next entry; `None` at the end of the archive.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut extensions = Extensions::default();
        for _ in 0..MAX_EXTENSIONS {
            self.skip_content()?;
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            let size = field(&header, SIZE)?;
            self.start_content(size)?;
            match header.entry_type() {
                EntryType::XHeader => extensions.add_pax(&self.read_extension()?)?,
                EntryType::GNULongName => extensions.path = Some(without_nul(self.read_extension()?)),
                EntryType::GNULongLink => extensions.link = Some(without_nul(self.read_extension()?)),
                EntryType::XGlobalHeader => {}
                EntryType::GNUSparse => return Err(TarError::Sparse),
                kind => return self.entry(&header, kind, extensions).map(Some),
            }
        }
        Err(TarError::TooManyExtensions)
    }

    /// What is left of the current entry's content. An early end is [`io::ErrorKind::UnexpectedEof`].
    pub(crate) fn content(&mut self) -> Content<'_, R> {
        Content { tarball: self }
    }

    fn entry(&mut self, header: &Header, kind: EntryType, extensions: Extensions) -> Result<Entry, TarError> {
        let kind = match kind {
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Link => Kind::HardLink,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Directory => Kind::Directory,
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => Kind::Device,
            _ => Kind::Unknown,
        };
        if let Some(size) = extensions.size {
            self.start_content(size)?;
        }
        let path = extensions
            .path
            .unwrap_or_else(|| header.path_bytes().into_owned());
        // Archives older than ustar mark a directory by its name.
        let kind = if kind == Kind::File && path.ends_with(b"/") {
            Kind::Directory
        } else {
            kind
        };
        let link = extensions.link.unwrap_or_else(|| {
            header
                .link_name_bytes()
                .map(std::borrow::Cow::into_owned)
                .unwrap_or_default()
        });
        let mtime = match extensions.mtime {
            Some(mtime) => mtime,
            None => field(header, MTIME)?.try_into().unwrap_or(i64::MAX),
        };
        Ok(Entry {
            path,
            link,
            kind,
            size: self.content_left,
            // Only twelve bits are used; the kind of file is known already.
            mode: u32::try_from(field(header, MODE)? & 0o7777).unwrap_or_default(),
            uid: extensions.uid.map_or_else(|| field(header, UID), Ok)?,
            gid: extensions.gid.map_or_else(|| field(header, GID), Ok)?,
            mtime,
            xattrs: extensions.xattrs,
        })
    }

    /// The archive ends with a block of zeros, or, as some writers have it, without.
    fn read_header(&mut self) -> Result<Option<Header>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.reader.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Truncated),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TarError::reading(error)),
            }
        }
        if block == [0; BLOCK] {
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        if field(&header, CHECKSUM)? == checksum(&block) {
            Ok(Some(header))
        } else {
            Err(TarError::Header("its checksum is wrong"))
        }
    }

    fn start_content(&mut self, size: u64) -> Result<(), TarError> {
        let padded = size
            .checked_next_multiple_of(BLOCK as u64)
            .ok_or(TarError::Header("its size is too large"))?;
        self.content_left = size;
        self.padding_left = padded - size;
        Ok(())
    }

    fn skip_content(&mut self) -> Result<(), TarError> {
        let left = self.content_left + self.padding_left;
        let skipped =
            io::copy(&mut (&mut self.reader).take(left), &mut io::sink()).map_err(TarError::reading)?;
        (self.content_left, self.padding_left) = (0, 0);
        if skipped == left {
            Ok(())
        } else {
            Err(TarError::Truncated)
        }
    }

    fn read_extension(&mut self) -> Result<Vec<u8>, TarError> {
        if self.content_left > MAX_EXTENSION_BYTES {
            return Err(TarError::ExtensionTooLong);
        }
        let mut bytes = Vec::new();
        self.content()
            .read_to_end(&mut bytes)
            .map_err(TarError::reading)?;
        Ok(bytes)
    }
}

#[derive(Debug)]
pub(crate) struct Content<'a, R> {
    tarball: &'a mut Tarball<R>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.tarball.content_left).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        if wanted == 0 {
            return Ok(0);
        }
        match self.tarball.reader.read(&mut buffer[..wanted])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.tarball.content_left -= count as u64;
                Ok(count)
            }
        }
    }
}

/// What extended headers say about the entry after them.
#[derive(Debug, Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Extensions {
    /// Records are `LENGTH KEY=VALUE\n`; the length counts the whole record, so a value may hold anything.
    fn add_pax(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        const BROKEN: TarError = TarError::Header("its PAX records are malformed");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or(BROKEN)?;
            let length: usize = parse(&records[..space]).ok_or(BROKEN)?;
            if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(BROKEN);
            }
            let record = &records[space + 1..length - 1];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(BROKEN)?;
            self.add_record(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn add_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        const NUMBER: TarError = TarError::Header("a PAX record is not a number");
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(parse(value).ok_or(NUMBER)?),
            b"uid" => self.uid = Some(parse(value).ok_or(NUMBER)?),
            b"gid" => self.gid = Some(parse(value).ok_or(NUMBER)?),
            b"mtime" => {
                // The fraction is left out: layers are compared by whole seconds.
                let seconds = value.split(|byte| *byte == b'.').next().unwrap_or_default();
                self.mtime = Some(parse(seconds).ok_or(NUMBER)?);
            }
            _ if key.starts_with(b"GNU.sparse.") => return Err(TarError::Sparse),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

fn parse<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// GNU's long names end with a zero.
fn without_nul(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}

/// Octal digits with blanks around them, nothing for zero, or, marked by the highest bit, a binary number.
fn field(header: &Header, range: Range<usize>) -> Result<u64, TarError> {
    const BROKEN: TarError = TarError::Header("one of its numbers is none");
    let bytes = &header.as_bytes()[range];
    if let [0x80, rest @ ..] = bytes {
        return rest
            .iter()
            .try_fold(0_u64, |sum, byte| {
                sum.checked_mul(256)?.checked_add(u64::from(*byte))
            })
            .ok_or(BROKEN);
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    match bytes[..end].trim_ascii() {
        b"" => Ok(0),
        digits if digits.iter().all(u8::is_ascii_digit) => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 8).ok())
            .ok_or(BROKEN),
        _ => Err(BROKEN),
    }
}

/// The sum of all bytes, those of the checksum itself taken as spaces.
fn checksum(block: &[u8; BLOCK]) -> u64 {
    block
        .iter()
        .enumerate()
        .map(|(index, byte)| u64::from(if CHECKSUM.contains(&index) { b' ' } else { *byte }))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: EntryType, path: &str, size: u64) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_path(path).unwrap();
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    fn padded(mut archive: Vec<u8>, content: &[u8]) -> Vec<u8> {
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
        archive
    }

    fn entries(archive: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, TarError> {
        let mut tarball = Tarball::new(archive);
        let mut entries = Vec::new();
        while let Some(entry) = tarball.next_entry()? {
            let mut content = Vec::new();
            tarball
                .content()
                .read_to_end(&mut content)
                .map_err(TarError::reading)?;
            entries.push((entry, content));
        }
        Ok(entries)
    }

    #[test]
    fn pax_records_win_over_the_header() {
        let records = b"16 path=long/er\n18 mtime=-12.3456\n9 uid=77\n27 SCHILY.xattr.user.a=x=\n\n";
        let mut archive = padded(header(EntryType::XHeader, "pax", records.len() as u64), records);
        archive.extend(padded(header(EntryType::Regular, "short", 5), b"hello"));
        let entries = entries(&archive).unwrap();
        let (entry, content) = &entries[0];
        assert_eq!(
            (entry.path.as_slice(), entry.mtime, entry.uid),
            (&b"long/er"[..], -12, 77)
        );
        assert_eq!(entry.xattrs, [(b"user.a".to_vec(), b"x=\n".to_vec())]);
        assert_eq!(content, b"hello");
    }

    #[test]
    fn a_pax_size_replaces_that_of_the_header() {
        let mut archive = padded(header(EntryType::XHeader, "pax", 9), b"9 size=3\n");
        archive.extend(padded(header(EntryType::Regular, "a", 0), b"abc"));
        archive.extend(padded(header(EntryType::Regular, "b", 1), b"d"));
        let entries = entries(&archive).unwrap();
        assert_eq!(entries[0].1, b"abc");
        assert_eq!(entries[1].1, b"d");
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error() {
        let archive = padded(header(EntryType::Regular, "a", 600), &[7; 600]);
        for cut in [1, 511, 513, 1000, archive.len() - 1] {
            let result = entries(&archive[..cut]);
            // The padding of the last entry is only missed when something should follow.
            assert!(matches!(result, Err(TarError::Truncated)), "{cut}: {result:?}");
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let mut broken = header(EntryType::Regular, "a", 0);
        broken[0] ^= 1;
        assert!(matches!(entries(&broken), Err(TarError::Header(_))));
        let long = header(EntryType::GNULongName, "a", MAX_EXTENSION_BYTES + 1);
        assert!(matches!(entries(&long), Err(TarError::ExtensionTooLong)));
        let huge = header(EntryType::GNULongName, "a", u64::MAX >> 28);
        assert!(matches!(entries(&huge), Err(TarError::ExtensionTooLong)));
        let many = header(EntryType::XGlobalHeader, "a", 0).repeat(MAX_EXTENSIONS);
        assert!(matches!(entries(&many), Err(TarError::TooManyExtensions)));
        let sparse = header(EntryType::GNUSparse, "a", 0);
        assert!(matches!(entries(&sparse), Err(TarError::Sparse)));
    }

    #[test]
    fn numbers_in_every_form() {
        let mut header = Header::new_ustar();
        let mut parsed = |bytes: &[u8]| {
            header.as_mut_bytes()[UID].copy_from_slice(bytes);
            field(&header, UID).ok()
        };
        assert_eq!(parsed(b"0000644\0"), Some(0o644));
        assert_eq!(parsed(b"   644 \0"), Some(0o644));
        assert_eq!(parsed(&[0; 8]), Some(0));
        assert_eq!(parsed(&[0x80, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        for broken in [b"0000648\0", b"-000644\0", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(parsed(broken), None);
        }
    }

    #[test]
    fn malformed_pax_records_are_refused() {
        for records in [
            "x",
            "5 a=b",
            "99 a=b\n",
            "0 a=b\n",
            "7 ab=c",
            "6 abc\n",
            "9 size=x\n",
            "18446744073709551615 a=b\n",
        ] {
            let archive = padded(
                header(EntryType::XHeader, "pax", records.len() as u64),
                records.as_bytes(),
            );
            let result = entries(&archive);
            assert!(
                matches!(result, Err(TarError::Header(_))),
                "{records:?}: {result:?}"
            );
        }
    }
}
