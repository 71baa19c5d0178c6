//! When the pods' network is compared with what it should be: as soon as the kernel says that a table of ours or forwarding
//! has changed, and every ten seconds for what the kernel does not say.
//!
//! The comparison costs little while nothing has changed (`repair`). A program that removes the tables again and again does
//! not keep the machine busy: after some quick repairs, rules are installed every ten seconds.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use pulselet_runtime::{EventHub, NetworkPart, RuntimeEvent};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind,
        netlink::{NETFILTER, SocketAddrNetlink},
        recv, socket_with,
    },
};

use super::{
    Network, firewall, forwarding,
    netlink::{attributes, messages},
    nftables::{ANSWER_SIZE, FAMILY_HEAD, NEW_GENERATION, table_of},
    services,
};

/// How often the network is compared while nothing is heard.
const ROUND: Duration = Duration::from_secs(10);
/// Between two comparisons, so that a program that changes tables of ours all the time does not keep the agent busy.
const COMPARE_PAUSE: Duration = Duration::from_millis(100);
/// Repairs within [`QUICK_WINDOW`] that are made immediately. A reload of a firewall removes the tables once or twice.
const QUICK_REPAIRS: usize = 5;
const QUICK_WINDOW: Duration = Duration::from_mins(1);

/// Multicast groups of the kernel, as bits: changes of nftables, and of settings such as forwarding.
const NFTABLES_GROUP: u32 = 1 << 6;
const SETTINGS_GROUP: u32 = 1 << 23;
/// The link that a message about settings is about.
const SETTINGS_LINK: u16 = 1;
/// Instead of a link: the setting of the whole machine.
const ALL_LINKS: i32 = -1;
/// Bytes of what follows the head of a message about settings: the family.
const SETTINGS_HEAD: usize = 4;

impl Network {
    /// Keeps the network as it should be, in the network namespace of the calling thread, until the network is dropped.
    pub(crate) fn keep(self: &Arc<Self>, events: EventHub) -> io::Result<()> {
        self.events.get_or_init(|| events);
        let network = Arc::downgrade(self);
        let mut sockets = Sockets {
            tables: [
                firewall::table(&self.bridge),
                services::table(&self.bridge),
                forwarding::TABLE.to_owned(),
            ],
            rules: None,
            settings: None,
        };
        sockets.open();
        let thread = thread::Builder::new().name("network-watch".to_owned());
        thread.spawn(move || keep(&network, &mut sockets))?;
        Ok(())
    }

    fn announce(&self, part: NetworkPart) {
        tracing::warn!(
            part = part.name(),
            "pod network restored: another program had removed or changed a part of it"
        );
        if let Some(events) = self.events.get() {
            events.publish(RuntimeEvent::NetworkRestored(part));
        }
    }
}

fn keep(network: &Weak<Network>, sockets: &mut Sockets) {
    let mut pace = Pace::default();
    while let Some(network) = network.upgrade() {
        let may_install = pace.admits(Instant::now());
        let repair = network.repair(may_install);
        if !repair.restored.is_empty() || (may_install && repair.is_incomplete) {
            pace.note(Instant::now());
        }
        for part in repair.restored {
            network.announce(part);
        }
        drop(network);
        thread::sleep(COMPARE_PAUSE);
        let now = Instant::now();
        let again = if repair.is_incomplete {
            pace.next().max(now)
        } else {
            now + ROUND
        };
        sockets.wait(again.min(now + ROUND));
    }
}

/// How often something is restored.
#[derive(Debug, Default)]
struct Pace(VecDeque<Instant>);

impl Pace {
    fn note(&mut self, now: Instant) {
        self.0.push_back(now);
        if self.0.len() > QUICK_REPAIRS {
            self.0.pop_front();
        }
    }

    fn admits(&self, now: Instant) -> bool {
        self.next_after(now).is_none_or(|next| next <= now)
    }

    /// When something may be restored again.
    fn next(&self) -> Instant {
        let now = Instant::now();
        self.next_after(now).unwrap_or(now)
    }

    /// `None` if immediately.
    fn next_after(&self, now: Instant) -> Option<Instant> {
        let is_often =
            self.0.len() == QUICK_REPAIRS && self.0.front().is_some_and(|first| now < *first + QUICK_WINDOW);
        self.0.back().filter(|_| is_often).map(|last| *last + ROUND)
    }
}

/// Where the kernel says that something has changed. Without it there are rounds.
#[derive(Debug)]
struct Sockets {
    /// The tables that are ours.
    tables: [String; 3],
    rules: Option<OwnedFd>,
    settings: Option<OwnedFd>,
}

impl Sockets {
    fn open(&mut self) {
        if self.rules.is_none() {
            self.rules = listen(Some(NETFILTER), NFTABLES_GROUP);
        }
        if self.settings.is_none() {
            self.settings = listen(None, SETTINGS_GROUP);
        }
    }

    /// Returns when a table of ours or forwarding may have changed, or at that time.
    fn wait(&mut self, until: Instant) {
        self.open();
        let tables = &self.tables;
        let is_table = |name: &[u8]| tables.iter().any(|table| table.as_bytes() == name);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let sockets: Vec<&OwnedFd> = [&self.rules, &self.settings].into_iter().flatten().collect();
            let mut waited: Vec<_> = sockets
                .iter()
                .map(|socket| PollFd::new(*socket, PollFlags::IN))
                .collect();
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut waited, timeout.as_ref()) {
                Ok(0) => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return thread::sleep(left),
            }
            let rules = hear(&mut self.rules, |kind, content| {
                let content = content.get(FAMILY_HEAD..).unwrap_or_default();
                kind != NEW_GENERATION && table_of(content).is_some_and(is_table)
            });
            if rules | hear(&mut self.settings, |_, content| is_of_all_links(content)) {
                return;
            }
        }
    }
}

/// `None` where the kernel has no such thing.
fn listen(protocol: Option<Protocol>, groups: u32) -> Option<OwnedFd> {
    let open = || -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(socket)
    };
    open()
        .inspect_err(|error| tracing::debug!(%error, groups, "the kernel does not say when networks change"))
        .ok()
}

/// Reads all that has come and returns whether something concerns us. Where the kernel had to drop messages, it may.
fn hear(socket: &mut Option<OwnedFd>, mut concerns: impl FnMut(u16, &[u8]) -> bool) -> bool {
    let mut has_heard = false;
    let mut buffer = vec![0; ANSWER_SIZE];
    while let Some(open) = socket.as_ref() {
        match recv(open, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((count, _)) => {
                has_heard |= messages(&buffer[..count]).any(|(kind, content)| concerns(kind, content));
            }
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(Errno::NOBUFS) => has_heard = true,
            Err(_) => *socket = None,
        }
    }
    has_heard
}

fn is_of_all_links(content: &[u8]) -> bool {
    let mut attributes = attributes(content.get(SETTINGS_HEAD..).unwrap_or_default());
    attributes.any(|(kind, value)| kind == SETTINGS_LINK && value == ALL_LINKS.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_never_stops_gets_rounds() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let mut now = start;
        let mut made = Vec::new();
        while now < start + QUICK_WINDOW * 3 {
            if pace.admits(now) {
                pace.note(now);
                made.push(now - start);
            }
            now += COMPARE_PAUSE;
        }
        assert_eq!(
            made[QUICK_REPAIRS - 1],
            COMPARE_PAUSE * 4,
            "the first ones are immediate"
        );
        let later = made[QUICK_REPAIRS..].windows(2);
        assert!(later.clone().all(|pair| pair[0] + ROUND == pair[1]), "{made:?}");
        assert!(later.len() > 10, "{made:?}");
        assert!(pace.admits(now + QUICK_WINDOW), "it has stopped");
        assert!(pace.next_after(now + QUICK_WINDOW).is_none());
    }
}
