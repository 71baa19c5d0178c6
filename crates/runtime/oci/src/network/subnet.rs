//! Addresses of pods: a range, the next free one in it, and what follows from an address.

use std::{
    collections::HashSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::netlink::MacAddress;

/// A range of IPv4 addresses, `10.88.0.0/16`. The first is the bridge's, the others are for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    base: u32,
    prefix: u8,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a range of addresses for pods, for example 10.88.0.0/16 (8 to 29 bits)")]
pub struct InvalidSubnet(String);

/// Bits of an IPv6 range: those of one link.
pub(crate) const V6_PREFIX: u8 = 64;

/// The first four bytes of IPv6 addresses of pods: of the addresses that anybody may use for himself.
const V6_START: u32 = 0xfd70_6c74;

/// The first two bytes of hardware addresses of pods and their bridge: for one machine, not given by a manufacturer.
const MAC_START: [u8; 2] = [0x02, 0x70];

/// Room for the whole machine's pods, and for at least five.
const PREFIXES: std::ops::RangeInclusive<u8> = 8..=29;

impl Subnet {
    /// `base` with its host part cut off.
    pub(crate) fn new(base: Ipv4Addr, prefix: u8) -> Option<Self> {
        PREFIXES.contains(&prefix).then(|| Self {
            base: u32::from(base) & mask(prefix),
            prefix,
        })
    }

    pub(crate) fn prefix(self) -> u8 {
        self.prefix
    }

    pub(crate) fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.prefix) == self.base
    }

    pub(crate) fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1)
    }

    /// The IPv6 address that belongs to one of this range. No other range and no other address gives the same, so that
    /// nothing has to be remembered about it.
    pub(crate) fn v6(self, address: Ipv4Addr) -> Ipv6Addr {
        let [start, base, own] = [V6_START, self.base, address.to_bits()].map(u128::from);
        Ipv6Addr::from_bits(start << 96 | base << 64 | own)
    }

    /// The first address that nobody has after the one that was given last, and after the range's end from its bottom: one
    /// that was just given back is the last to be given again.
    pub(crate) fn free_address(self, taken: &[IpAddr], given: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
        let pods = self.base + 2..self.base | !mask(self.prefix);
        let given = given.map(Ipv4Addr::to_bits).filter(|bits| pods.contains(bits));
        let start = given.map_or(pods.start, |given| given + 1);
        let taken: HashSet<&IpAddr> = taken.iter().collect();
        (start..pods.end)
            .chain(pods.start..start)
            .map(Ipv4Addr::from_bits)
            .find(|address| !taken.contains(&IpAddr::V4(*address)))
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let common = mask(self.prefix.min(other.prefix));
        self.base & common == other.base & common
    }

    /// Of the lines of /proc/net/route: whether one that is not ours leads into this range.
    pub(crate) fn clashes(self, routes: &str, own_link: &str) -> bool {
        routes.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let address = |index: usize| {
                let text = fields.get(index)?;
                Some(u32::from_be(u32::from_str_radix(text, 16).ok()?))
            };
            let (Some(link), Some(base), Some(mask)) = (fields.first(), address(1), address(7)) else {
                return false;
            };
            // The default route leads everywhere and clashes with nothing.
            let prefix = u8::try_from(mask.leading_ones()).unwrap_or(32);
            *link != own_link && prefix > 0 && self.overlaps(Self { base, prefix })
        })
    }
}

/// The hardware address that belongs to an IPv4 address, and so to the IPv6 address that belongs to that. Who remembers
/// it of a pod that is gone still reaches the next one that has the address.
pub(crate) fn mac_of(address: Ipv4Addr) -> MacAddress {
    let [first, second] = MAC_START;
    let [a, b, c, d] = address.octets();
    [first, second, a, b, c, d]
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = InvalidSubnet;

    fn from_str(text: &str) -> Result<Self, InvalidSubnet> {
        text.split_once('/')
            .and_then(|(base, prefix)| Self::new(base.parse().ok()?, prefix.parse().ok()?))
            .ok_or_else(|| InvalidSubnet(text.to_owned()))
    }
}

impl TryFrom<String> for Subnet {
    type Error = InvalidSubnet;

    fn try_from(text: String) -> Result<Self, InvalidSubnet> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().expect("a range")
    }

    #[test]
    fn addresses_are_given_from_the_bottom_until_none_is_left() {
        let range = subnet("10.1.2.77/29");
        assert_eq!(
            (range.to_string(), range.gateway().to_string()),
            ("10.1.2.72/29".into(), "10.1.2.73".into())
        );
        let mut taken = Vec::new();
        let mut given = None;
        while let Some(address) = range.free_address(&taken, given) {
            taken.push(IpAddr::V4(address));
            given = Some(address);
        }
        let expected = [74, 75, 76, 77, 78].map(|last| IpAddr::from([10, 1, 2, last]));
        assert_eq!(taken, expected);
    }

    #[test]
    fn an_address_given_back_is_the_last_to_be_given_again() {
        let range = subnet("10.1.2.72/29");
        let after = |given: u8, taken: &[u8]| {
            let taken: Vec<IpAddr> = taken.iter().map(|last| [10, 1, 2, *last].into()).collect();
            let free = range.free_address(&taken, Some([10, 1, 2, given].into()));
            free.map(|address| address.octets()[3])
        };
        assert_eq!(after(75, &[74]), Some(76));
        assert_eq!(after(75, &[74, 76, 77]), Some(78));
        assert_eq!(after(78, &[]), Some(74), "after the end comes the bottom");
        assert_eq!(after(78, &[74, 75]), Some(76));
        assert_eq!(after(75, &[74, 76, 77, 78]), Some(75), "no other is left");
        assert_eq!(after(75, &[74, 75, 76, 77, 78]), None);
    }

    #[test]
    fn an_address_of_another_range_was_not_the_last() {
        let range = subnet("10.1.2.72/29");
        let after = |given: [u8; 4]| range.free_address(&[], Some(given.into()));
        for given in [[10, 1, 2, 1], [10, 1, 2, 73], [10, 1, 2, 79], [255; 4], [0; 4]] {
            assert_eq!(after(given), Some([10, 1, 2, 74].into()), "{given:?}");
        }
    }

    #[test]
    fn every_address_has_one_hardware_address_of_this_machine_alone() {
        let mac = mac_of(Ipv4Addr::new(10, 88, 2, 200));
        assert_eq!(mac, [0x02, 0x70, 10, 88, 2, 200]);
        assert_eq!(mac[0] & 0b01, 0, "is one receiver's");
        assert_eq!(mac[0] & 0b10, 0b10, "is no manufacturer's");
    }

    #[test]
    fn every_address_has_one_of_ipv6_in_the_ranges_own_part() {
        let range = subnet("10.88.2.0/23");
        let v6 = |last| range.v6(Ipv4Addr::new(10, 88, 2, last)).to_string();
        assert_eq!(
            (v6(1).as_str(), v6(200).as_str()),
            ("fd70:6c74:a58:200::a58:201", "fd70:6c74:a58:200::a58:2c8")
        );
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/30",
            "10.0.0.0/7",
            "10.0.0/16",
            "::/16",
            "10.0.0.0/-1",
        ] {
            assert!(text.parse::<Subnet>().is_err(), "{text}");
        }
    }

    #[test]
    fn routes_of_others_clash() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n\
            eth0\t0001580A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
        // The second line is 10.88.1.0/24.
        assert!(subnet("10.88.0.0/16").clashes(routes, "pulselet0"));
        assert!(!subnet("10.88.0.0/16").clashes(routes, "eth0"));
        assert!(!subnet("10.89.0.0/16").clashes(routes, "pulselet0"));
        assert!(subnet("10.88.1.128/25").clashes(routes, "pulselet0"));
    }
}
