//! Users for pods that have their own: which of the host's numbers stand for them.
//!
//! What always holds: no range holds a number that a user or group of the machine has, or that the machine has given away
//! for other containers. Who gives ranges sees to it that each belongs to one sandbox at a time.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
};

use crate::IdRange;

/// Users and groups of one pod, as many as a kubelet gives.
pub const IDS_PER_POD: u32 = 65_536;

/// Ranges are looked for from here on, and there are this many: above what user databases, `/etc/subuid` and systemd's
/// dynamic users have by default, and below the half of all numbers that some programs take for negative.
pub const POOL_FIRST: u32 = 1 << 30;
const POOL_RANGES: u32 = 12_288;

/// Bytes that are read of one of the machine's files: far more than they have.
const MAX_FILE: u64 = 4 << 20;

/// Numbers that this machine uses, each of which no pod may have.
pub fn of_machine() -> Vec<IdRange> {
    let mut used = Vec::new();
    for path in ["/etc/passwd", "/etc/group"] {
        used.extend(read(path).lines().filter_map(single));
    }
    for path in ["/etc/subuid", "/etc/subgid"] {
        used.extend(read(path).lines().filter_map(delegated));
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        for name in ["uid_map", "gid_map"] {
            let map = read(process.path().join(name));
            used.extend(map.lines().filter_map(mapped));
        }
    }
    used.sort_unstable();
    used.dedup();
    used
}

/// A range that overlaps none of those that are taken; `None` if there is none. Which one is tried first depends on
/// `seed`, so that agents that do not know of each other seldom choose the same.
pub fn free_range(taken: &[IdRange], seed: u64) -> Option<IdRange> {
    let first = u32::try_from(seed % u64::from(POOL_RANGES)).unwrap_or_default();
    (0..POOL_RANGES)
        .map(|step| IdRange {
            first: POOL_FIRST + ((first + step) % POOL_RANGES) * IDS_PER_POD,
            count: IDS_PER_POD,
        })
        .find(|range| !taken.iter().any(|other| range.overlaps(*other)))
}

/// A file that cannot be read says nothing.
fn read(path: impl AsRef<Path>) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

/// An entry of a user or a group.
fn single(line: &str) -> Option<IdRange> {
    let first = line.split(':').nth(2)?.parse().ok()?;
    Some(IdRange { first, count: 1 })
}

/// Numbers that a user may give to containers.
fn delegated(line: &str) -> Option<IdRange> {
    let mut fields = line.trim().split(':').skip(1);
    range(fields.next()?, fields.next()?)
}

/// A line of a map. That of all numbers to themselves is no user namespace's.
fn mapped(line: &str) -> Option<IdRange> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let range = range(fields.next()?, fields.next()?)?;
    (range.count != u32::MAX).then_some(range)
}

fn range(first: &str, count: &str) -> Option<IdRange> {
    let (first, count) = (first.parse().ok()?, count.parse().ok()?);
    Some(IdRange { first, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_disjoint_and_avoid_what_is_used() {
        let mut taken = vec![
            single("web:x:1073741830:5::/:").expect("an entry"),
            delegated("me:1073807360:65536").expect("an entry"),
            mapped("         0 1073872896      65536").expect("a line"),
        ];
        assert_eq!(mapped("0 0 4294967295"), None);
        assert_eq!((single("broken"), delegated("me:x:1")), (None, None));
        for expected in [3, 4, 5] {
            let range = free_range(&taken, 0).expect("is free");
            assert_eq!(range.first, POOL_FIRST + expected * IDS_PER_POD);
            taken.push(range);
        }
        let last = free_range(&[], u64::MAX).expect("is free");
        assert!(last.first >= POOL_FIRST && last.first.checked_add(last.count).is_some());
        let all = IdRange {
            first: POOL_FIRST,
            count: POOL_RANGES * IDS_PER_POD,
        };
        assert_eq!(free_range(&[all], 7), None);
    }

    #[test]
    fn numbers_inside_have_numbers_on_the_host() {
        let range = IdRange {
            first: 1000,
            count: 10,
        };
        assert_eq!((range.on_host(9), range.on_host(10)), (Some(1009), None));
        let overlaps = |first, count| range.overlaps(IdRange { first, count });
        assert!(overlaps(1009, 1) && overlaps(0, 1001) && overlaps(0, u32::MAX));
        assert!(!overlaps(1010, 5) && !overlaps(990, 10));
    }
}
