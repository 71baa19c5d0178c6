//! The arguments and the environment that a process was started with, as others see them.

use std::{fs, io, ptr, slice, sync::OnceLock};

use crate::SoleThread;

/// In /proc/self/stat, counted from the field after the name: where the arguments begin and end, and the environment.
const RANGES: [(usize, usize); 2] = [(45, 46), (47, 48)];

/// Bytes of either; the kernel takes less from whoever runs a program.
const MAX_LENGTH: usize = 8 << 20;

/// Where this process and its forks have them, once somebody has looked.
static FOUND: OnceLock<[(usize, usize); 2]> = OnceLock::new();

/// Finds out where the arguments and the environment are, for this process and all its forks: they need not look again.
pub fn find_arguments() -> io::Result<()> {
    ranges().map(drop)
}

/// Where the arguments begin: above all frames of the first thread's stack.
pub(crate) fn first_argument() -> io::Result<usize> {
    ranges().map(|[(start, _), _]| start)
}

fn ranges() -> io::Result<[(usize, usize); 2]> {
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let line = fs::read("/proc/self/stat")?;
    let mut found = [(0, 0); 2];
    for (place, range) in found.iter_mut().zip(RANGES) {
        *place = parse_range(&line, range).ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok(*FOUND.get_or_init(|| found))
}

/// Overwrites with zeroes what this process was started with, so that /proc shows nothing of it. From then on the
/// process has neither arguments nor variables. It needs the /proc of the process's own namespace, or of one above it.
pub fn erase_arguments(_sole: &SoleThread) -> io::Result<()> {
    for (start, length) in ranges()? {
        let memory = ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the kernel put the texts there when it ran this program and has said where. They are bytes on
        // the first thread's stack above all of its frames, no reference to them exists (the standard library copies
        // them whenever it is asked), and no other thread could be reading: there is none. The lists of pointers to the
        // texts stay as they are and now lead to empty ones.
        unsafe { ptr::write_bytes(memory, 0, length) };
    }
    Ok(())
}

/// Overwrites the last argument with one of the same length, as others see it. With another length it is an error, and
/// nothing is changed.
pub fn replace_last_argument(_sole: &SoleThread, argument: &[u8]) -> io::Result<()> {
    let [(start, length), _] = ranges()?;
    let memory = ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: as in `erase_arguments`: bytes that nobody else reads or refers to.
    let arguments = unsafe { slice::from_raw_parts_mut(memory, length) };
    let last = last_argument(arguments).ok_or(io::ErrorKind::InvalidData)?;
    if last.len() != argument.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    last.copy_from_slice(argument);
    Ok(())
}

/// Every argument ends with a zero.
fn last_argument(arguments: &mut [u8]) -> Option<&mut [u8]> {
    let (0, texts) = arguments.split_last_mut()? else {
        return None;
    };
    let before = texts.iter().rposition(|&byte| byte == 0)?;
    Some(&mut texts[before + 1..])
}

/// The name, in parentheses, may hold anything, parentheses too.
fn parse_range(line: &[u8], (start, end): (usize, usize)) -> Option<(usize, usize)> {
    let after_name = &line[line.iter().rposition(|&byte| byte == b')')? + 1..];
    let fields: Vec<&str> = std::str::from_utf8(after_name)
        .ok()?
        .split_ascii_whitespace()
        .collect();
    let number = |index: usize| fields.get(index)?.parse::<usize>().ok();
    let (start, end) = (number(start)?, number(end)?);
    let length = end.checked_sub(start)?;
    (start != 0 && length <= MAX_LENGTH).then_some((start, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_argument_is_found() {
        let last = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            last_argument(&mut bytes).map(|found| String::from_utf8_lossy(found).into_owned())
        };
        assert_eq!(last("a\0shim\0/dir\0"), Some("/dir".to_owned()));
        assert_eq!(last("a\0\0"), Some(String::new()));
        for text in ["", "a", "a\0", "a\0shim"] {
            assert_eq!(last(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_ranges_are_those_that_the_kernel_means() {
        let line = fs::read("/proc/self/stat").expect("reads");
        let (_, length) = parse_range(&line, RANGES[0]).expect("is there");
        let shown = fs::read("/proc/self/cmdline").expect("reads");
        assert_eq!(length, shown.len());
        let (_, length) = parse_range(&line, RANGES[1]).expect("is there");
        let shown = fs::read("/proc/self/environ").expect("reads");
        assert_eq!(length, shown.len());
        assert_eq!(parse_range(b"1 (a) S 1 2", RANGES[0]), None);
    }
}
