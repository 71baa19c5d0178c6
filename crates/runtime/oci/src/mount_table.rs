//! The kernel's table of mounts, as /proc/self/mountinfo has it.

use std::{
    borrow::Cow,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Where the mount of a line is.
pub(crate) fn target(line: &str) -> Option<Cow<'_, Path>> {
    line.split(' ').nth(4).map(unescape)
}

/// Spaces and the like are written as a backslash and three octal digits.
pub(crate) fn unescape(text: &str) -> Cow<'_, Path> {
    if !text.contains('\\') {
        return Cow::Borrowed(Path::new(text));
    }
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            Some(_) | None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(PathBuf::from(OsStr::from_bytes(&bytes)))
}
