//! IP addresses from Envoy, networks, and matchers of both.

use super::value::Sense;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The addresses with the same first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_len: u32,
}

impl Network {
    /// The network of `address` with this many bits, capped at those of the address.
    #[must_use]
    pub fn new(address: IpAddr, prefix_len: u32) -> Self {
        let prefix_len = prefix_len.min(bits_of(address));
        let rest = bits_of(address).saturating_sub(prefix_len);
        let address = match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
                Ipv4Addr::from_bits(ip.to_bits() & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
                Ipv6Addr::from_bits(ip.to_bits() & mask).into()
            }
        };
        Network { address, prefix_len }
    }

    /// Whether `address` is in it; never for the other family.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Network::new(address, self.prefix_len) == *self
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// The number of bits of an address.
#[must_use]
pub fn bits_of(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => Ipv4Addr::BITS,
        IpAddr::V6(_) => Ipv6Addr::BITS,
    }
}

/// A matcher of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressMatcher {
    /// The address must be in one of these.
    pub networks: Vec<Network>,
    /// Or, inverted, in none of them.
    pub sense: Sense,
}

impl AddressMatcher {
    /// Whether `address` matches.
    #[must_use]
    pub fn matches(&self, address: IpAddr) -> bool {
        self.sense.of(self.networks.iter().any(|network| network.contains(address)))
    }
}

/// The address in Envoy's `ip:port`, without the port; none if it is not an IP address, such as
/// that of a Unix socket.
#[must_use]
pub fn ip_of(address: &[u8]) -> Option<IpAddr> {
    let address = std::str::from_utf8(address).ok()?;
    match address.parse::<SocketAddr>() {
        Ok(socket) => Some(socket.ip()),
        Err(_) => address.parse().ok(),
    }
}

/// An address of Envoy without its port: `ip` of `ip:port` and `[ip]:port`. Others have none.
#[must_use]
pub fn without_port(address: &[u8]) -> &[u8] {
    let end = match address.first() {
        Some(b'[') => b']',
        Some(b'0'..=b'9') => b':',
        _ => return address,
    };
    let from = usize::from(end == b']');
    let rest = address.get(from..).unwrap_or_default();
    rest.split(|byte| *byte == end).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_that_share_its_bits() {
        let table = [
            ("192.168.1.77", 24, "192.168.1.0/24", "192.168.1.255", "192.168.2.0"),
            ("10.1.2.3", 32, "10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
            ("10.1.2.3", 99, "10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
            ("10.1.2.3", 0, "0.0.0.0/0", "255.0.0.1", "::1"),
            ("2001:db8:1:2::9", 48, "2001:db8:1::/48", "2001:db8:1:ffff::", "2001:db8:2::"),
            ("2001:db8::1", 128, "2001:db8::1/128", "2001:db8::1", "2001:db8::2"),
            ("2001:db8::1", 0, "::/0", "ffff::", "1.1.1.1"),
        ];
        for (address, prefix_len, shown, inside, outside) in table {
            let network = Network::new(address.parse().unwrap(), prefix_len);
            assert_eq!(network.to_string(), shown);
            assert!(network.contains(inside.parse().unwrap()), "{inside} in {shown}");
            assert!(!network.contains(outside.parse().unwrap()), "{outside} in {shown}");
        }
    }

    #[test]
    fn an_address_is_taken_without_its_port() {
        let table: [(&[u8], Option<&str>); 6] = [
            (b"203.0.113.9:4711", Some("203.0.113.9")),
            (b"203.0.113.9", Some("203.0.113.9")),
            (b"[2001:DB8:0::7]:1", Some("2001:db8::7")),
            (b"2001:db8::7", Some("2001:db8::7")),
            (b"/var/run/x.sock", None),
            (b"\xff", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(ip_of(bytes).map(|ip| ip.to_string()).as_deref(), expected);
        }
    }

    #[test]
    fn a_port_is_cut_off_as_it_is_written() {
        let table = [
            ("203.0.113.9:4711", "203.0.113.9"),
            ("203.0.113.9", "203.0.113.9"),
            ("[2001:db8::7]:1", "2001:db8::7"),
            ("[2001:db8::7", "2001:db8::7"),
            ("/var/run/x:1", "/var/run/x:1"),
            ("@abstract:1", "@abstract:1"),
            ("envoy://listener/1", "envoy://listener/1"),
            ("", ""),
        ];
        for (address, expected) in table {
            assert_eq!(without_port(address.as_bytes()), expected.as_bytes());
        }
    }
}
