//! Under which addresses a pod may send: its own, and no other pod's.
//!
//! A container has `NET_RAW` by default and can send any frame. A program of the kernel's packet filter looks at every
//! frame that comes out of a pod's link, before the bridge learns from it: the hardware address, the source of IPv4 and IPv6,
//! the sender of ARP, the target of neighbour advertisements. It belongs to the host's end of the link and goes with it;
//! neither nftables nor a list of pods is needed.
//!
//! What always holds: a frame that is let through names nobody but its pod as its sender, and goes to no loopback address
//! of IPv4: the host may route these for its own ports, and other programs can remove the rules that guard them. Other protocols than those
//! three, router advertisements and redirects are dropped, and neighbour messages behind further headers too. So are
//! messages about groups: nobody on the bridge routes for groups, each report would be copied to every other pod, and a
//! question would make the bridge go by the reports.

use std::net::{Ipv4Addr, Ipv6Addr};

use pulselet_sys::FilterInstruction;

use super::{PodAddresses, netlink::MacAddress, subnet::mac_of};

// Classic BPF. Loads are of the frame, in network order.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_BYTE_INDEXED: u16 = 0x50;
const SHIFT_LEFT: u16 = 0x64;
const TO_INDEX: u16 = 0x07;
const IS_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

// What becomes of the frame, by the numbers of traffic control.
const PASS_FRAME: u32 = 0;
const DROP_FRAME: u32 = 2;

// Offsets into a frame.
const SOURCE_MAC: u32 = 6;
const PROTOCOL: u32 = 12;
const V4_SOURCE: u32 = 26;
const V4_TARGET: u32 = 30;
const ARP_SENDER_MAC: u32 = 22;
const ARP_SENDER: u32 = 28;
const V6_NEXT_HEADER: u32 = 20;
const V6_SOURCE: u32 = 22;
const V6_PAYLOAD: u32 = 54;
/// Of a neighbour message.
const V6_TARGET: u32 = 62;

/// The first byte of every loopback address.
const LOOPBACK: u32 = 127;

// Protocols of a frame.
const IPV4: u32 = 0x0800;
const ARP: u32 = 0x0806;
const IPV6: u32 = 0x86dd;

// Headers of IPv6.
const HOP_BY_HOP: u32 = 0;
const ROUTING: u32 = 43;
const AUTHENTICATION: u32 = 51;
const ICMPV6: u32 = 58;
const DESTINATION_OPTIONS: u32 = 60;

// Messages of ICMPv6.
const NEIGHBOUR_SOLICITATION: u32 = 135;
const NEIGHBOUR_ADVERTISEMENT: u32 = 136;
const NEIGHBOUR_MESSAGES: [u32; 5] = [133, 134, NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT, 137];
/// Question, report and farewell, and the second version of the report. They have a header of options before them.
const GROUP_MESSAGES: [u32; 4] = [130, 131, 132, 143];
const ROUTER_ADVERTISEMENT: u32 = 134;
const REDIRECT: u32 = 137;

/// Where a comparison leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Next,
    Pass,
    Drop,
    Arp,
    V4,
    V6,
    /// The source is the pod's.
    OwnSource,
    /// The source is no address yet.
    NoSource,
    Icmp,
    /// A neighbour message whose target has to be the pod's.
    Target,
    HopByHop,
    HopByHopIcmp,
    FurtherHeaders,
    /// An address whose first part was right.
    Rest(u8),
}

#[derive(Debug, Default)]
struct Assembly {
    code: Vec<(u16, Label, Label, u32)>,
    marks: Vec<(Label, usize)>,
}

impl Assembly {
    fn mark(&mut self, label: Label) {
        self.marks.push((label, self.code.len()));
    }

    fn step(&mut self, code: u16, value: u32) {
        self.code.push((code, Label::Next, Label::Next, value));
    }

    fn if_equal(&mut self, value: u32, yes: Label) {
        self.code.push((IS_EQUAL, yes, Label::Next, value));
    }

    fn unless_equal(&mut self, value: u32, no: Label) {
        self.code.push((IS_EQUAL, Label::Next, no, value));
    }

    fn end(&mut self, label: Label) {
        self.code.push((IS_EQUAL, label, label, 0));
    }

    fn require_mac(&mut self, offset: u32, mac: MacAddress) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        self.step(LOAD_HALF, offset);
        self.unless_equal(number(&mac[..2]), Label::Drop);
        self.step(LOAD_WORD, offset + 2);
        self.unless_equal(number(&mac[2..]), Label::Drop);
    }

    /// Goes on at a label by the address of IPv6 at an offset; any other is dropped. `number` makes the labels' own.
    fn choose_v6(&mut self, offset: u32, choices: &[(Ipv6Addr, Label)], number: u8) {
        let rest = |index: usize| Label::Rest(number + u8::try_from(index).unwrap_or(u8::MAX));
        self.step(LOAD_WORD, offset);
        for (index, (address, _)) in choices.iter().enumerate() {
            self.if_equal(word(*address, 0), rest(index));
        }
        self.end(Label::Drop);
        for (index, (address, label)) in choices.iter().enumerate() {
            self.mark(rest(index));
            for part in 1..4_u8 {
                self.step(LOAD_WORD, offset + 4 * u32::from(part));
                self.unless_equal(word(*address, part), Label::Drop);
            }
            self.end(*label);
        }
    }

    /// All jumps lead forward.
    fn finish(mut self) -> Vec<FilterInstruction> {
        self.mark(Label::Drop);
        self.step(RETURN, DROP_FRAME);
        self.mark(Label::Pass);
        self.step(RETURN, PASS_FRAME);
        let find = |label: Label, from: usize| {
            let mark = self.marks.iter().find(|(mark, _)| *mark == label);
            let place = mark.map_or(from + 1, |(_, place)| *place);
            u8::try_from(place - from - 1).expect("the program is short and jumps forward")
        };
        let code = self.code.iter().enumerate();
        code.map(|(index, (code, yes, no, k))| FilterInstruction {
            code: *code,
            yes: find(*yes, index),
            no: find(*no, index),
            k: *k,
        })
        .collect()
    }
}

/// Four bytes of an address.
fn word(address: Ipv6Addr, part: u8) -> u32 {
    u32::try_from((address.to_bits() >> (96 - 32 * u32::from(part))) & 0xffff_ffff).unwrap_or_default()
}

/// The address that a link gives itself.
fn link_local(mac: MacAddress) -> Ipv6Addr {
    let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0];
    octets[8..11].copy_from_slice(&mac[..3]);
    octets[13..].copy_from_slice(&mac[3..]);
    octets[8] ^= 2;
    Ipv6Addr::from(octets)
}

/// The program for the link of the pod with these addresses.
pub(super) fn program(PodAddresses { v4, v6 }: PodAddresses) -> Vec<FilterInstruction> {
    let mac = mac_of(v4);
    let mut assembly = Assembly::default();
    assembly.require_mac(SOURCE_MAC, mac);
    assembly.step(LOAD_HALF, PROTOCOL);
    assembly.if_equal(IPV4, Label::V4);
    assembly.if_equal(ARP, Label::Arp);
    assembly.if_equal(IPV6, if v6.is_some() { Label::V6 } else { Label::Drop });
    assembly.end(Label::Drop);
    check_v4(&mut assembly, mac, v4);
    if let Some(v6) = v6 {
        check_v6(&mut assembly, v6, link_local(mac));
    }
    assembly.finish()
}

fn check_v4(assembly: &mut Assembly, mac: MacAddress, address: Ipv4Addr) {
    assembly.mark(Label::V4);
    assembly.step(LOAD_WORD, V4_SOURCE);
    assembly.unless_equal(address.to_bits(), Label::Drop);
    // The host may route these addresses for its own ports.
    assembly.step(LOAD_BYTE, V4_TARGET);
    assembly.if_equal(LOOPBACK, Label::Drop);
    assembly.end(Label::Pass);
    assembly.mark(Label::Arp);
    assembly.require_mac(ARP_SENDER_MAC, mac);
    assembly.step(LOAD_WORD, ARP_SENDER);
    assembly.if_equal(address.to_bits(), Label::Pass);
    // Who asks whether an address is free has none yet.
    assembly.if_equal(0, Label::Pass);
    assembly.end(Label::Drop);
}

fn check_v6(assembly: &mut Assembly, address: Ipv6Addr, local: Ipv6Addr) {
    assembly.mark(Label::V6);
    let sources = [
        (address, Label::OwnSource),
        (local, Label::OwnSource),
        (Ipv6Addr::UNSPECIFIED, Label::NoSource),
    ];
    assembly.choose_v6(V6_SOURCE, &sources, 0);

    assembly.mark(Label::OwnSource);
    assembly.step(LOAD_BYTE, V6_NEXT_HEADER);
    assembly.if_equal(ICMPV6, Label::Icmp);
    assembly.if_equal(HOP_BY_HOP, Label::HopByHop);
    for header in [ROUTING, AUTHENTICATION, DESTINATION_OPTIONS] {
        assembly.if_equal(header, Label::FurtherHeaders);
    }
    assembly.end(Label::Pass);

    assembly.mark(Label::NoSource);
    assembly.step(LOAD_BYTE, V6_NEXT_HEADER);
    assembly.if_equal(HOP_BY_HOP, Label::HopByHop);
    assembly.unless_equal(ICMPV6, Label::Drop);
    assembly.step(LOAD_BYTE, V6_PAYLOAD);
    assembly.if_equal(NEIGHBOUR_SOLICITATION, Label::Target);
    assembly.mark(Label::Icmp);
    assembly.step(LOAD_BYTE, V6_PAYLOAD);
    assembly.if_equal(NEIGHBOUR_ADVERTISEMENT, Label::Target);
    assembly.if_equal(ROUTER_ADVERTISEMENT, Label::Drop);
    assembly.if_equal(REDIRECT, Label::Drop);
    assembly.end(Label::Pass);

    assembly.mark(Label::HopByHop);
    assembly.step(LOAD_BYTE, V6_PAYLOAD);
    assembly.if_equal(ICMPV6, Label::HopByHopIcmp);
    assembly.mark(Label::FurtherHeaders);
    assembly.step(LOAD_BYTE, V6_PAYLOAD);
    for header in [HOP_BY_HOP, ROUTING, AUTHENTICATION, ICMPV6, DESTINATION_OPTIONS] {
        assembly.if_equal(header, Label::Drop);
    }
    assembly.end(Label::Pass);

    // The second byte says how many times eight bytes follow its first eight.
    assembly.mark(Label::HopByHopIcmp);
    assembly.step(LOAD_BYTE, V6_PAYLOAD + 1);
    assembly.step(SHIFT_LEFT, 3);
    assembly.step(TO_INDEX, 0);
    assembly.step(LOAD_BYTE_INDEXED, V6_PAYLOAD + 8);
    for message in NEIGHBOUR_MESSAGES.into_iter().chain(GROUP_MESSAGES) {
        assembly.if_equal(message, Label::Drop);
    }
    assembly.end(Label::Pass);

    assembly.mark(Label::Target);
    let targets = [(address, Label::Pass), (local, Label::Pass)];
    assembly.choose_v6(V6_TARGET, &targets, 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: PodAddresses = PodAddresses {
        v4: Ipv4Addr::new(10, 88, 0, 5),
        v6: Some(Ipv6Addr::new(0xfd00, 1, 2, 3, 0, 0, 0, 5)),
    };

    /// What the kernel does, for the few instructions that are used. A load beyond the frame lets it pass, as there.
    fn passes(program: &[FilterInstruction], frame: &[u8]) -> bool {
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
        let load = |offset: u32, count: usize| {
            let offset = offset as usize;
            let bytes = frame.get(offset..offset + count)?;
            Some(
                bytes
                    .iter()
                    .fold(0_u32, |value, byte| value << 8 | u32::from(*byte)),
            )
        };
        loop {
            let FilterInstruction { code, yes, no, k } = program[at];
            at += 1;
            let loaded = match code {
                LOAD_WORD => load(k, 4),
                LOAD_HALF => load(k, 2),
                LOAD_BYTE => load(k, 1),
                LOAD_BYTE_INDEXED => load(x + k, 1),
                SHIFT_LEFT => Some(a << k),
                TO_INDEX => {
                    x = a;
                    Some(a)
                }
                IS_EQUAL => {
                    at += usize::from(if a == k { yes } else { no });
                    Some(a)
                }
                RETURN => return k == PASS_FRAME,
                _ => panic!("instruction {code:#x}"),
            };
            let Some(value) = loaded else {
                return true;
            };
            a = value;
        }
    }

    fn frame(mac: MacAddress, protocol: u32, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend(mac);
        frame.extend(&protocol.to_be_bytes()[2..]);
        frame.extend(body);
        frame
    }

    fn v4(source: Ipv4Addr) -> Vec<u8> {
        v4_to(source, Ipv4Addr::new(10, 88, 0, 9))
    }

    fn v4_to(source: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut body = vec![0x45; 12];
        body.extend(source.octets());
        body.extend(target.octets());
        body.extend([0; 4]);
        body
    }

    fn arp(mac: MacAddress, sender: Ipv4Addr) -> Vec<u8> {
        let mut body = vec![0, 1, 8, 0, 6, 4, 0, 2];
        body.extend(mac);
        body.extend(sender.octets());
        body.extend([0; 10]);
        body
    }

    fn v6(source: Ipv6Addr, next: u32, payload: &[u8]) -> Vec<u8> {
        let mut body = vec![0x60, 0, 0, 0, 0, 0, next.to_be_bytes()[3], 255];
        body.extend(source.octets());
        body.extend(Ipv6Addr::LOCALHOST.octets());
        body.extend(payload);
        body
    }

    fn neighbour(kind: u32, target: Ipv6Addr) -> Vec<u8> {
        let mut payload = vec![kind.to_be_bytes()[3], 0, 0, 0, 0, 0, 0, 0];
        payload.extend(target.octets());
        payload
    }

    #[test]
    fn only_the_pods_own_addresses_pass() {
        let program = program(ADDRESSES);
        let own_mac = mac_of(ADDRESSES.v4);
        let other_v4 = Ipv4Addr::new(10, 88, 0, 6);
        let (own, local) = (ADDRESSES.v6.expect("has one"), link_local(own_mac));
        let other = Ipv6Addr::new(0xfd00, 1, 2, 3, 0, 0, 0, 6);
        let other_local = link_local(mac_of(other_v4));
        let none = Ipv6Addr::UNSPECIFIED;
        let behind = |first: u32, next: u32, inner: Vec<u8>| {
            let mut payload = vec![next.to_be_bytes()[3], 0, 5, 2, 0, 0, 1, 0];
            payload.extend(inner);
            v6(own, first, &payload)
        };
        let advertise = |target| neighbour(NEIGHBOUR_ADVERTISEMENT, target);
        let report = vec![143, 0, 0, 0, 0, 0, 0, 1];
        for (protocol, body, passed) in [
            (IPV4, v4(ADDRESSES.v4), true),
            (IPV4, v4(other_v4), false),
            (IPV4, v4_to(ADDRESSES.v4, Ipv4Addr::LOCALHOST), false),
            (IPV4, v4_to(ADDRESSES.v4, Ipv4Addr::new(127, 9, 9, 9)), false),
            (ARP, arp(own_mac, ADDRESSES.v4), true),
            (ARP, arp(own_mac, Ipv4Addr::UNSPECIFIED), true),
            (ARP, arp(own_mac, other_v4), false),
            (ARP, arp(mac_of(other_v4), ADDRESSES.v4), false),
            (IPV6, v6(own, 17, &[0; 8]), true),
            (IPV6, v6(local, 17, &[0; 8]), true),
            (IPV6, v6(other, 17, &[0; 8]), false),
            (IPV6, v6(other_local, 17, &[0; 8]), false),
            (IPV6, v6(none, 17, &[0; 8]), false),
            (IPV6, v6(own, ICMPV6, &advertise(own)), true),
            (IPV6, v6(local, ICMPV6, &advertise(local)), true),
            (IPV6, v6(own, ICMPV6, &advertise(other)), false),
            (IPV6, v6(local, ICMPV6, &advertise(other_local)), false),
            (
                IPV6,
                v6(own, ICMPV6, &neighbour(NEIGHBOUR_SOLICITATION, other)),
                true,
            ),
            (
                IPV6,
                v6(none, ICMPV6, &neighbour(NEIGHBOUR_SOLICITATION, own)),
                true,
            ),
            (
                IPV6,
                v6(none, ICMPV6, &neighbour(NEIGHBOUR_SOLICITATION, other)),
                false,
            ),
            (
                IPV6,
                v6(local, ICMPV6, &neighbour(ROUTER_ADVERTISEMENT, local)),
                false,
            ),
            (IPV6, v6(local, ICMPV6, &neighbour(REDIRECT, local)), false),
            (IPV6, behind(HOP_BY_HOP, ICMPV6, report), false),
            (IPV6, behind(HOP_BY_HOP, ICMPV6, vec![130, 0, 0, 0]), false),
            (IPV6, behind(HOP_BY_HOP, ICMPV6, vec![128, 0, 0, 0]), true),
            (IPV6, behind(HOP_BY_HOP, ICMPV6, advertise(other)), false),
            (IPV6, behind(DESTINATION_OPTIONS, ICMPV6, advertise(other)), false),
            (
                IPV6,
                behind(HOP_BY_HOP, DESTINATION_OPTIONS, advertise(other)),
                false,
            ),
            (IPV6, behind(ROUTING, 6, vec![0; 20]), true),
            (0x8100, v4(ADDRESSES.v4), false),
            (0x8035, arp(own_mac, ADDRESSES.v4), false),
        ] {
            assert_eq!(
                passes(&program, &frame(own_mac, protocol, &body)),
                passed,
                "{protocol:#x} {body:?}"
            );
            assert!(
                !passes(&program, &frame(mac_of(other_v4), protocol, &body)),
                "another's link: {body:?}"
            );
        }
    }

    #[test]
    fn a_pod_without_ipv6_sends_none() {
        let program = program(PodAddresses {
            v6: None,
            ..ADDRESSES
        });
        let own_mac = mac_of(ADDRESSES.v4);
        assert!(!passes(
            &program,
            &frame(own_mac, IPV6, &v6(link_local(own_mac), 17, &[0; 8]))
        ));
        assert!(passes(&program, &frame(own_mac, IPV4, &v4(ADDRESSES.v4))));
    }
}
