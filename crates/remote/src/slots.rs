//! The slots of a cluster, and the lanes: which server has the keys of a slot.
//!
//! The keys of one place have one slot. Their names have the place as their hash tag, 4 hexadecimal digits.

use tidegate_core::KeyHash;
use tidegate_store::Hashed;

/// The slots of every cluster.
pub(crate) const SLOTS: usize = 16_384;
/// A server that flights go to, as an index. In a cluster, number 0 is no server.
pub(crate) type Lane = usize;
/// The lane of slots that no server has.
pub(crate) const NOWHERE: Lane = 0;

/// Where keys are.
#[derive(Debug)]
pub(crate) enum Lanes {
    /// All are on one server.
    One,
    /// The lane of each slot.
    Slots(Box<[Lane]>),
}

impl Lanes {
    pub(crate) fn nowhere() -> Lanes {
        Lanes::Slots(vec![NOWHERE; SLOTS].into())
    }

    pub(crate) fn of(&self, key: &Hashed) -> Lane {
        match self {
            Lanes::One => 0,
            Lanes::Slots(_) => self.of_slot(slot_of(key)),
        }
    }

    pub(crate) fn of_slot(&self, slot: usize) -> Lane {
        match self {
            Lanes::One => 0,
            Lanes::Slots(lanes) => lanes.get(slot).copied().unwrap_or(NOWHERE),
        }
    }
}

/// The hash tag of a key.
pub(crate) fn tag(key: &Hashed) -> [u8; 4] {
    let place = KeyHash(key.hash).place();
    std::array::from_fn(|index| {
        let digit = (place >> (12 - 4 * index) & 0xf) as u8;
        if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
    })
}

pub(crate) fn slot_of(key: &Hashed) -> usize {
    slot(&tag(key))
}

/// The slot of a key's name without a hash tag: CRC-16/XMODEM.
pub(crate) fn slot(name: &[u8]) -> usize {
    const TABLE: [u16; 256] = table();
    let step = |crc: u16, byte: &u8| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)];
    usize::from(name.iter().fold(0, step)) % SLOTS
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the word of a server: `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_redis() {
        for (name, expected) in
            [("", 0), ("123456789", 12_739), ("foo", 12_182), ("tidegate:seed", 6_343)]
        {
            assert_eq!(slot(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn places_are_spread_over_all_slots() {
        let mut counts = vec![0; SLOTS];
        for place in 0..=u16::MAX {
            counts[slot_of(&Hashed::narrow(place.into()))] += 1;
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*most <= 16, "{least} to {most} places in a slot");
        // Three masters, with the slots that redis-cli gives them.
        for range in [0..5_461, 5_461..10_923, 10_923..SLOTS] {
            let places: u32 = counts[range].iter().sum();
            assert!((20_000..24_000).contains(&places), "{places} places");
        }
    }

    #[test]
    fn the_tag_is_the_place() {
        assert_eq!(&tag(&Hashed::narrow(0xffff_0000_1a2b)), b"1a2b");
        assert_eq!(&tag(&Hashed::wide(7)), b"0007");
    }
}
