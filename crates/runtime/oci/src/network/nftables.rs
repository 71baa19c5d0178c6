//! The tables of nftables as the kernel has them, each as a few numbers: enough to see that a table was removed or changed.
//!
//! The kernel counts transactions. While the count is the same, no table of any program has changed, and nothing else
//! has to be read.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::fd::OwnedFd,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::NETFILTER, recv, send,
        socket_with,
    },
};

use super::netlink::{Message, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, attributes, messages};

/// Bytes that are read of an answer. The kernel fills no more than half of that per message.
pub(super) const ANSWER_SIZE: usize = 64 << 10;

/// How often a table is read that does not read the same twice: a set can be resized meanwhile, for some milliseconds.
const MAX_READS: usize = 5;

/// Bytes of what follows the head of every message about nftables: family, version, number of the transaction.
pub(super) const FAMILY_HEAD: usize = 4;
const IPV4: u8 = 2;

// Numbers of the kernel's interface.
const NFTABLES: u16 = 10 << 8;
const GET_TABLE: u16 = NFTABLES | 1;
const GET_CHAIN: u16 = NFTABLES | 4;
const GET_RULE: u16 = NFTABLES | 7;
const GET_SET: u16 = NFTABLES | 0xa;
const GET_ELEMENTS: u16 = NFTABLES | 0xd;
pub(super) const NEW_GENERATION: u16 = NFTABLES | 0xf;
const GET_GENERATION: u16 = NFTABLES | 0x10;
const GENERATION_ID: u16 = 1;
/// The name of the table, in messages about tables and about all that is in one.
pub(super) const TABLE_NAME: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const ELEMENTS: u16 = 3;
/// A set of a rule, which is never changed.
const ANONYMOUS_SET: u32 = 1;

/// How much a table should have of what cannot be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outline {
    pub(super) chains: usize,
    pub(super) rules: usize,
}

/// A table as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) outline: Outline,
    /// Of everything in it. The kernel numbers what it is given, so that a copy differs as well.
    fingerprint: u64,
}

/// A connection to the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Nftables(OwnedFd);

impl Nftables {
    /// For the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, Some(NETFILTER))?;
        Ok(Self(socket))
    }

    /// The number of the last transaction.
    pub(super) fn generation(&self) -> io::Result<u32> {
        let mut id = None;
        self.ask(GET_GENERATION, 0, None, |content| {
            id = attributes(content)
                .find(|(kind, _)| *kind == GENERATION_ID)
                .and_then(|(_, value)| value.try_into().ok().map(u32::from_be_bytes));
        })?;
        id.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// A table for IPv4, read until two readings in a row are the same or one is `expected`. `None` if there is no such table.
    pub(super) fn table(&self, name: &str, expected: Option<Table>) -> io::Result<Option<Table>> {
        let mut last = self.read_table(name)?;
        for _ in 1..MAX_READS {
            if expected.is_some() && last == expected {
                break;
            }
            let next = self.read_table(name)?;
            if next == last {
                break;
            }
            last = next;
        }
        Ok(last)
    }

    fn read_table(&self, name: &str) -> io::Result<Option<Table>> {
        let mut hasher = DefaultHasher::new();
        let mut counts = [0_usize; 3];
        let mut sets = Vec::new();
        for (count, request) in [GET_TABLE, GET_CHAIN, GET_RULE].into_iter().enumerate() {
            self.list(request, name, None, |content| {
                content.hash(&mut hasher);
                counts[count] += 1;
            })?;
        }
        self.list(GET_SET, name, None, |content| {
            content.hash(&mut hasher);
            sets.extend(named_set(content));
        })?;
        for set in sets {
            // In which order the kernel lists them depends on its hash table.
            let mut elements = BTreeSet::new();
            self.list(GET_ELEMENTS, name, Some(&set), |content| {
                let lists = attributes(content).filter(|(kind, _)| *kind == ELEMENTS);
                elements.extend(lists.flat_map(|(_, list)| attributes(list)).map(|(_, element)| {
                    let mut hasher = DefaultHasher::new();
                    element.hash(&mut hasher);
                    hasher.finish()
                }));
            })?;
            elements.hash(&mut hasher);
        }
        let [tables, chains, rules] = counts;
        Ok((tables > 0).then(|| Table {
            outline: Outline { chains, rules },
            fingerprint: hasher.finish(),
        }))
    }

    /// Visits what a table has of a kind. A table or set that is gone has nothing.
    fn list(
        &self,
        request: u16,
        table: &str,
        set: Option<&str>,
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let is_wanted = |content: &[u8]| table_of(content) == Some(table.as_bytes());
        let listed = self.ask(request, NLM_F_DUMP, Some((table, set)), |content| {
            if is_wanted(content) {
                visit(content);
            }
        });
        match listed {
            Err(error) if error.raw_os_error() != Some(Errno::NOENT.raw_os_error()) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Sends a question and visits the attributes of each answer.
    fn ask(
        &self,
        request: u16,
        flags: u16,
        place: Option<(&str, Option<&str>)>,
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut message = Message::question(request, flags);
        message.raw(&[IPV4, 0, 0, 0]);
        if let Some((table, set)) = place {
            message.text(TABLE_NAME, table);
            if let Some(set) = set {
                message.text(SET_NAME, set);
            }
        }
        send(&self.0, &message.finish(), SendFlags::empty())?;
        let mut answer = vec![0; ANSWER_SIZE];
        loop {
            let (count, _) = recv(&self.0, answer.as_mut_slice(), RecvFlags::empty())?;
            for (kind, content) in messages(&answer[..count]) {
                match kind {
                    NLMSG_DONE | NLMSG_ERROR => return ending(content),
                    _ => visit(content.get(FAMILY_HEAD..).unwrap_or_default()),
                }
            }
            if flags & NLM_F_DUMP == 0 {
                return Ok(());
            }
        }
    }
}

/// The table that a message is about, without the zero at its end.
pub(super) fn table_of(content: &[u8]) -> Option<&[u8]> {
    let (_, name) = attributes(content).find(|(kind, _)| *kind == TABLE_NAME)?;
    name.strip_suffix(&[0])
}

/// The name of a set whose elements can change.
fn named_set(content: &[u8]) -> Option<String> {
    let value = |wanted: u16| {
        let found = attributes(content).find(|(kind, _)| *kind == wanted);
        found.map(|(_, value)| value)
    };
    let flags = value(SET_FLAGS).and_then(|flags| flags.try_into().ok());
    if flags.map_or(0, u32::from_be_bytes) & ANONYMOUS_SET != 0 {
        return None;
    }
    let name = value(SET_NAME)?.strip_suffix(&[0])?;
    String::from_utf8(name.to_vec()).ok()
}

/// A list that has ended says whether it is complete; an error says which, or that it is none.
fn ending(content: &[u8]) -> io::Result<()> {
    let code = content.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    match code {
        0.. => Ok(()),
        _ => Err(io::Error::from_raw_os_error(-code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_cut_off_or_lie_about_their_length_end() {
        let mut message = Message::question(GET_RULE, 0);
        message.raw(&[IPV4, 0, 0, 0]);
        message.text(TABLE_NAME, "pulselet_b");
        let whole = message.finish();
        let table = |bytes: &[u8]| {
            let (_, content) = messages(bytes).next()?;
            table_of(content.get(FAMILY_HEAD..)?).map(<[u8]>::to_vec)
        };
        assert_eq!(table(&whole).as_deref(), Some(&b"pulselet_b"[..]));
        for length in 0..whole.len() {
            assert_eq!(table(&whole[..length]), None);
        }
        for place in 0..whole.len() {
            for value in [0, 1, 3, 255] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                assert!(messages(&damaged).count() <= whole.len());
                assert!(messages(&damaged).all(|(_, content)| attributes(content).count() <= whole.len()));
            }
        }
    }
}
