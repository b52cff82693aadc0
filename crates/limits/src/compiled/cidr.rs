//! Ranges of addresses, and the search for the ranges that contain an address.
//!
//! IPv4 is stored as its IPv6 mapping (`::ffff:0:0/96`), so both spellings of an address are equal. The
//! families still do not mix: `::/0` contains every IPv6 address and no IPv4 address.

use super::hash::Map;
use super::search::{Rank, Work};
use crate::text::whole_number;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address before the IPv4 address that is mapped into it.
const MAPPED_BITS: u8 = 96;
/// The value of these bits.
const MAPPED: u128 = 0xffff << 32;
/// The longest text of a range: 45 bytes of address (`INET6_ADDRSTRLEN` less its end) and `/128`.
const TEXT_LEN_MAX: usize = 45 + 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The first address; the bits after the first `bits` are zero.
    network: u128,
    /// The number of leading bits, of 128, that an address must share.
    bits: u8,
}

/// Why a text is not a range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CidrError {
    /// Neither `10.0.0.0/8` nor `2001:db8::/32` nor a single address.
    #[error("{0:?} is not an IP address or a range of them, such as 10.0.0.0/8")]
    Address(String),
    /// The text after the `/` is not a number of bits.
    #[error("{text:?} ends in {length:?}, which is not a number of bits from 0 to {max}")]
    Length {
        /// The range as written.
        text: String,
        /// The text after the `/`.
        length: String,
        /// Bits of an address of this family.
        max: u8,
    },
    /// The address lies inside the range instead of being its first.
    #[error("{text:?} is an address inside a range: write {network} for the range")]
    HostBits { text: String, network: Cidr },
}

impl Cidr {
    /// Parses a range such as `10.0.0.0/8`, or a single address.
    ///
    /// # Errors
    /// If the text is neither, or the address is not the first of its range.
    pub fn parse(text: &str) -> Result<Self, CidrError> {
        let (exact, range) = Self::read(text)?;
        if exact != range.network {
            return Err(CidrError::HostBits { text: text.to_owned(), network: range });
        }
        Ok(range)
    }

    /// The range that a request's value names, if any. Bits after the prefix are ignored.
    fn of_value(value: &str) -> Option<Self> {
        if value.len() > TEXT_LEN_MAX {
            return None;
        }
        Self::read(value).ok().map(|(_, range)| range)
    }

    /// The address before the `/`, and its range.
    fn read(text: &str) -> Result<(u128, Cidr), CidrError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| CidrError::Address(text.to_owned()))?;
        let (address, before) = match address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), MAPPED_BITS),
            IpAddr::V6(v6) => (v6.to_bits(), 0),
        };
        let max = 128 - before;
        let length = match length {
            None => max,
            Some(length) => bits(length, max).ok_or_else(|| CidrError::Length {
                text: text.to_owned(),
                length: length.to_owned(),
                max,
            })?,
        };
        Ok((address, Cidr { network: address, bits: before + length }.cut(before + length)))
    }

    /// This range and all that contain it. An IPv6 range contains no IPv4 address.
    pub(crate) fn wider(self) -> impl Iterator<Item = Cidr> {
        (self.bits_min()..=self.bits).map(move |bits| self.cut(bits))
    }

    /// The length of the widest range of its family.
    fn bits_min(self) -> u8 {
        if self.is_ipv4() { MAPPED_BITS } else { 0 }
    }

    fn is_ipv4(self) -> bool {
        // Bits after the prefix are zero, so a match means that the prefix includes these.
        self.network >> 32 == MAPPED >> 32
    }

    /// The range of this length that contains it.
    fn cut(self, bits: u8) -> Cidr {
        let open = 128 - u32::from(bits);
        Cidr { network: self.network & u128::MAX.checked_shl(open).unwrap_or(0), bits }
    }
}

/// A number from 0 to `max`, only of digits and without leading zeros.
fn bits(text: &str, max: u8) -> Option<u8> {
    let is_plain = text == "0" || !text.starts_with('0');
    whole_number(text).filter(|bits| is_plain && *bits <= max)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.network);
        match address.to_ipv4_mapped().filter(|_| self.is_ipv4()) {
            Some(v4) => write!(f, "{v4}/{}", self.bits - MAPPED_BITS),
            None => write!(f, "{address}/{}", self.bits),
        }
    }
}

/// Many ranges, searched with one probe per prefix length instead of one per range.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    ranks: Map<Cidr, Rank>,
    /// The lengths that occur with the lowest rank of each, sorted by that rank.
    lengths: Vec<(u8, Rank)>,
}

impl Ranges {
    /// Of equal ranges, the lowest rank wins.
    pub(super) fn new(ranges: impl Iterator<Item = (Cidr, Rank)>) -> Self {
        let mut ranks = Map::default();
        let mut firsts: [Option<Rank>; 129] = [None; 129];
        for (range, rank) in ranges {
            let lowest = ranks.entry(range).or_insert(rank);
            *lowest = rank.min(*lowest);
            let first = &mut firsts[usize::from(range.bits)];
            *first = Some(first.map_or(rank, |first| first.min(rank)));
        }
        let mut lengths: Vec<(u8, Rank)> =
            (0..).zip(firsts).filter_map(|(bits, first)| Some((bits, first?))).collect();
        lengths.sort_unstable_by_key(|(_, first)| *first);
        Ranges { ranks, lengths }
    }

    /// The lowest rank, below `limit`, of a range that contains the value.
    pub(super) fn first(&self, value: &str, limit: Rank, work: &Work) -> Rank {
        if self.lengths.is_empty() {
            return limit;
        }
        let Some(value) = Cidr::of_value(value) else { return limit };
        let least = value.bits_min();
        let mut best = limit;
        for &(bits, first) in &self.lengths {
            if first >= best {
                break;
            }
            if (least..=value.bits).contains(&bits) {
                work.add(1);
                let found = self.ranks.get(&value.cut(bits));
                best = found.map_or(best, |rank| best.min(*rank));
            }
        }
        best
    }
}
