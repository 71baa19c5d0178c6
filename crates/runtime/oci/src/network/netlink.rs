//! The few requests to the kernel's network configuration that sandboxes need: links, addresses, routes,
//! neighbours.
//!
//! A socket belongs to the network namespace in which its thread was when it was opened, for as long as it is open. All
//! calls wait for the kernel's answer, which comes at once.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use libc::{
    IFA_ADDRESS, IFA_LOCAL, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO,
    IFLA_MASTER, IFLA_NET_NS_FD, NDA_DST, RT_SCOPE_UNIVERSE, RT_TABLE_MAIN, RTA_GATEWAY, RTM_DELLINK,
    RTM_DELNEIGH, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, RTN_UNICAST, RTPROT_BOOT,
};
use pulselet_sys::FilterInstruction;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice::name_to_index, recv, send,
        socket_with,
    },
};

/// Bytes that are read of an answer: an error number comes first, and nothing else is wanted.
const ANSWER_SIZE: usize = 1024;

/// Bytes of the head of every message.
const HEAD: usize = 16;

// Numbers of the kernel's interface that `libc` lacks, or has in a type that is not the message's.
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
pub(super) const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLA_F_NESTED: u16 = 0x8000;
/// Flags of an attribute: nested, and in the order of bytes of networks.
const NLA_FLAGS: u16 = 0xc000;
/// Bytes of the head of every attribute.
const ATTRIBUTE_HEAD: usize = 4;
const VETH_INFO_PEER: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IFA_F_NODAD: u8 = 2;
const IFF_UP: u32 = 1;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_EUI64: u8 = 0;
const ADDR_GEN_MODE_NONE: u8 = 1;
const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTFILTER: u16 = 44;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_OPS_LEN: u16 = 4;
const TCA_BPF_OPS: u16 = 5;
const TCA_BPF_FLAGS: u16 = 8;
/// The program says itself what becomes of a frame.
const BPF_DECIDES: u32 = 1;
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
/// The first filter; the protocol follows.
const FILTER_INFO: u32 = 1 << 16;
const ALL_PROTOCOLS: u16 = 3;

/// A link's hardware address.
pub(crate) type MacAddress = [u8; 6];

/// The end of a pair of links that is in another network namespace.
pub(crate) struct Peer<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: MacAddress,
    pub(crate) namespace: BorrowedFd<'a>,
}

#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    /// For the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // The protocol for links, addresses and routes is number zero.
            None,
        )?;
        Ok(Self(socket))
    }

    /// None if there is no such link.
    pub(crate) fn link(&self, name: &str) -> io::Result<Option<u32>> {
        // A message would be answered by all that there is to say about the link.
        match name_to_index(&self.0, name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a bridge that is up. One that is there already stays. Without a hardware address of its own a bridge would
    /// take the lowest of those of the links in it, and change it with them.
    pub(crate) fn add_bridge(&self, name: &str, mac: MacAddress) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
        message.link_head(0, true);
        message.text(IFLA_IFNAME, name);
        message.bytes(IFLA_ADDRESS, &mac);
        message.nested(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, "bridge"));
        unless_there(self.exchange(message))
    }

    /// Makes a pair of links: `name`, in the bridge and still down, here, and `peer` in the other network namespace. Both appear
    /// together or not at all, and vanish together.
    pub(crate) fn add_pair(&self, name: &str, bridge: u32, peer: &Peer<'_>) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
        message.link_head(0, false);
        message.text(IFLA_IFNAME, name);
        message.bytes(IFLA_MASTER, &bridge.to_ne_bytes());
        message.nested(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth");
            info.nested(IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |other| {
                    other.link_head(0, false);
                    other.text(IFLA_IFNAME, peer.name);
                    other.bytes(IFLA_ADDRESS, &peer.mac);
                    let namespace = peer.namespace.as_fd().as_raw_fd();
                    other.bytes(IFLA_NET_NS_FD, &namespace.to_ne_bytes());
                });
            });
        });
        self.exchange(message)
    }

    /// Keeps the kernel from giving the host's end of a pair an address of its own: it is a port of a bridge and needs none,
    /// and an address would be asked for and reported, to the pod. A machine without IPv6 gives none anyway.
    pub(crate) fn leave_without_address(&self, link: u32) -> io::Result<()> {
        self.set_address_mode(link, ADDR_GEN_MODE_NONE)
    }

    /// Has the kernel make a link's own address from its hardware address. There is a file for it as well; whoever uses
    /// that tries again and again while others change links, instead of waiting.
    pub(crate) fn derive_address(&self, link: u32) -> io::Result<()> {
        self.set_address_mode(link, ADDR_GEN_MODE_EUI64)
    }

    fn set_address_mode(&self, link: u32, mode: u8) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0);
        message.link_head(link, false);
        message.nested(IFLA_AF_SPEC, |families| {
            families.nested(u16::from(AF_INET6), |settings| {
                settings.bytes(IFLA_INET6_ADDR_GEN_MODE, &[mode]);
            });
        });
        match self.exchange(message) {
            Err(error) if error.raw_os_error() != Some(Errno::AFNOSUPPORT.raw_os_error()) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn set_up(&self, link: u32) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0);
        message.link_head(link, true);
        self.exchange(message)
    }

    /// Makes the kernel act at once on a link whose other end has just come up, which it does before it tells of the link.
    /// Otherwise a worker does it a moment later, and what comes meanwhile does not pass the bridge. Kernels before 6.8
    /// leave it to the worker.
    pub(crate) fn settle(&self, name: &str) -> io::Result<()> {
        let mut message = Message::new(RTM_GETLINK, 0);
        message.link_head(0, false);
        message.text(IFLA_IFNAME, name);
        self.exchange(message)
    }

    /// From then on it stays, whatever happens to the links in a bridge.
    pub(crate) fn set_mac(&self, link: u32, mac: MacAddress) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0);
        message.link_head(link, false);
        message.bytes(IFLA_ADDRESS, &mac);
        self.exchange(message)
    }

    /// One that is gone already is no error.
    pub(crate) fn delete_link(&self, name: &str) -> io::Result<()> {
        let mut message = Message::new(RTM_DELLINK, 0);
        message.link_head(0, false);
        message.text(IFLA_IFNAME, name);
        match self.exchange(message) {
            Err(error) if error.raw_os_error() != Some(Errno::NODEV.raw_os_error()) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// One that is there already stays. Nobody else has it, so it can be used at once.
    pub(crate) fn add_address(&self, link: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
        let (family, octets) = family_and_octets(address);
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        message.raw(&[family, prefix, flags, RT_SCOPE_UNIVERSE]);
        message.raw(&link.to_ne_bytes());
        message.bytes(IFA_LOCAL, &octets);
        message.bytes(IFA_ADDRESS, &octets);
        unless_there(self.exchange(message))
    }

    /// Forgets the hardware address that was learned for a neighbour: the next packet to him asks anew. One that is not
    /// known is no error.
    pub(crate) fn delete_neighbour(&self, link: u32, address: IpAddr) -> io::Result<()> {
        let mut message = Message::new(RTM_DELNEIGH, 0);
        let (family, octets) = family_and_octets(address);
        message.raw(&[family, 0, 0, 0]);
        message.raw(&link.to_ne_bytes());
        message.raw(&[0; 4]);
        message.bytes(NDA_DST, &octets);
        match self.exchange(message) {
            Err(error) if error.raw_os_error() != Some(Errno::NOENT.raw_os_error()) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn add_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
        let head = [
            AF_INET,
            0,
            0,
            0,
            RT_TABLE_MAIN,
            RTPROT_BOOT,
            RT_SCOPE_UNIVERSE,
            RTN_UNICAST,
        ];
        message.raw(&head);
        message.raw(&0_u32.to_ne_bytes());
        message.bytes(RTA_GATEWAY, &gateway.octets());
        unless_there(self.exchange(message))
    }

    /// Lets a program of the packet filter decide about every frame that comes in by a link. One that is there is replaced.
    /// For a link that is up the kernel waits until all that is under way has passed, which takes long.
    pub(crate) fn filter_frames(&self, link: u32, program: &[FilterInstruction]) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL);
        message.traffic_head(link, CLSACT_HANDLE, CLSACT, 0);
        message.text(TCA_KIND, "clsact");
        unless_there(self.exchange(message))?;
        let mut message = Message::new(RTM_NEWTFILTER, NLM_F_CREATE);
        message.traffic_head(
            link,
            1,
            CLSACT_INGRESS,
            FILTER_INFO | u32::from(ALL_PROTOCOLS.to_be()),
        );
        message.text(TCA_KIND, "bpf");
        let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        message.nested(TCA_OPTIONS, |options| {
            options.bytes(TCA_BPF_OPS_LEN, &length.to_ne_bytes());
            options.attribute(TCA_BPF_OPS, |operations| {
                for FilterInstruction { code, yes, no, k } in program {
                    operations.raw(&code.to_ne_bytes());
                    operations.raw(&[*yes, *no]);
                    operations.raw(&k.to_ne_bytes());
                }
            });
            options.bytes(TCA_BPF_FLAGS, &BPF_DECIDES.to_ne_bytes());
        });
        self.exchange(message)
    }

    /// Sends a request and waits for what answers it, an acknowledgement or the thing asked for.
    fn exchange(&self, message: Message) -> io::Result<()> {
        send(&self.0, &message.finish(), SendFlags::empty())?;
        let mut answer = [0; ANSWER_SIZE];
        recv(&self.0, answer.as_mut_slice(), RecvFlags::empty())?;
        let kind = u16::from_ne_bytes([answer[4], answer[5]]);
        let code = number(&answer[HEAD..HEAD + 4]).cast_signed();
        if kind == NLMSG_ERROR && code != 0 {
            return Err(io::Error::from_raw_os_error(-code));
        }
        Ok(())
    }
}

fn family_and_octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

fn unless_there(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() != Some(Errno::EXIST.raw_os_error()) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The messages in what was received, as kind and content.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(number(bytes.get(..4)?)).ok()?;
        let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
        let content = bytes.get(HEAD..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

/// The attributes in a content, as kind and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & !NLA_FLAGS;
        let value = bytes.get(ATTRIBUTE_HEAD..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A message under construction.
pub(super) struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        // A question is answered by what it asks for; everything else is to be acknowledged.
        let acknowledge = if kind == RTM_GETLINK { 0 } else { NLM_F_ACK };
        Self::question(kind, acknowledge | flags)
    }

    /// One that is answered by what it asks for.
    pub(super) fn question(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        Self(bytes)
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// What a message about a link begins with.
    fn link_head(&mut self, index: u32, up: bool) {
        let flags = if up { IFF_UP } else { 0 };
        self.raw(&[0; 4]);
        self.raw(&index.to_ne_bytes());
        self.raw(&flags.to_ne_bytes());
        self.raw(&flags.to_ne_bytes());
    }

    /// What a message about traffic control begins with.
    fn traffic_head(&mut self, link: u32, handle: u32, parent: u32, info: u32) {
        self.raw(&[0; 4]);
        for word in [link, handle, parent, info] {
            self.raw(&word.to_ne_bytes());
        }
    }

    pub(super) fn text(&mut self, kind: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    fn bytes(&mut self, kind: u16, bytes: &[u8]) {
        self.attribute(kind, |message| message.raw(bytes));
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute(kind | NLA_F_NESTED, fill);
    }

    /// Length, kind, content, and zeroes up to a multiple of four.
    fn attribute(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.raw(&[0; 2]);
        self.raw(&kind.to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.0.len() - start).expect("names and addresses are short");
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("messages are short");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}
