//! The open streams of a connection, ordered by number, and closed ones for reuse.
//!
//! Stream numbers only grow, so a new stream is the last one. Calls are short, so few streams are open.

/// Memory of closed streams kept for reuse: a dozen typical calls. More calls are open at once only if the
/// headers of many arrive before their messages.
const SPARE_BYTES_MAX: usize = 8 * 1024;

/// A stream with memory of its own.
pub(crate) trait Capacity {
    /// Bytes of memory, by capacity, beyond the struct itself.
    fn capacity_bytes(&self) -> usize;
}

#[derive(Debug)]
pub(crate) struct Streams<T> {
    open: Vec<(u32, Box<T>)>,
    /// Closed streams and the memory of each.
    spare: Vec<(usize, Box<T>)>,
    /// The sum of that memory.
    spare_bytes: usize,
}

impl<T: Capacity> Streams<T> {
    pub(crate) fn new() -> Streams<T> {
        Streams { open: Vec::new(), spare: Vec::new(), spare_bytes: 0 }
    }

    /// Bytes of memory, by capacity, without the buffers of open streams.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.spare_bytes
            + self.open.len() * size_of::<T>()
            + self.open.capacity() * size_of::<(u32, Box<T>)>()
            + self.spare.capacity() * size_of::<(usize, Box<T>)>()
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
        self.spare_bytes = 0;
        self.open.shrink_to_fit();
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Closed streams that are kept.
    #[cfg(test)]
    pub(crate) fn spare_len(&self) -> usize {
        self.spare.len()
    }

    /// A stream to open, reused if possible.
    #[inline]
    pub(crate) fn spare(&mut self, make: impl FnOnce() -> T) -> Box<T> {
        match self.spare.pop() {
            Some((bytes, stream)) => {
                self.spare_bytes -= bytes;
                stream
            }
            None => Box::new(make()),
        }
    }

    /// Opens a stream. Its number must be above all others.
    #[inline]
    pub(crate) fn insert(&mut self, id: u32, stream: Box<T>) {
        debug_assert!(self.open.last().is_none_or(|(last, _)| *last < id));
        self.open.push((id, stream));
    }

    #[inline]
    pub(crate) fn get(&mut self, id: u32) -> Option<&mut T> {
        let index = self.index(id)?;
        self.open.get_mut(index).map(|(_, stream)| &mut **stream)
    }

    /// Closes a stream. Return it by [`Streams::keep`].
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Option<Box<T>> {
        let index = self.index(id)?;
        Some(self.open.remove(index).1)
    }

    /// Keeps a closed stream for reuse if there is room.
    #[inline]
    pub(crate) fn keep(&mut self, stream: Box<T>) {
        let bytes = size_of::<T>() + stream.capacity_bytes();
        if self.spare_bytes + bytes <= SPARE_BYTES_MAX {
            self.spare_bytes += bytes;
            self.spare.push((bytes, stream));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.open.iter().map(|(id, stream)| (*id, &**stream))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.open.iter_mut().map(|(id, stream)| (*id, &mut **stream))
    }

    #[inline]
    fn index(&self, id: u32) -> Option<usize> {
        match self.open.last() {
            Some((last, _)) if *last == id => Some(self.open.len() - 1),
            _ => self.open.binary_search_by_key(&id, |(open, _)| *open).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item(usize);

    impl Capacity for Item {
        fn capacity_bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn streams_are_found_by_their_number() {
        let mut streams = Streams::new();
        for id in [1, 5, 9] {
            streams.insert(id, Box::new(Item(id as usize)));
        }
        for id in 0..12 {
            let expected = [1, 5, 9].contains(&id).then_some(Item(id as usize));
            assert_eq!(streams.get(id).map(|item| Item(item.0)), expected);
        }
        assert_eq!(streams.remove(5).map(|item| item.0), Some(5));
        assert_eq!((streams.len(), streams.remove(5)), (2, None));
    }

    /// Closed streams are kept up to 8 KiB with all that they own, the structs included.
    #[test]
    fn closed_streams_are_kept_within_8_kib() {
        let struct_bytes = size_of::<Item>();
        for (bytes, kept) in [(4096 - struct_bytes, 2), (4097 - struct_bytes, 1), (8193, 0)] {
            let mut streams = Streams::new();
            for _ in 0..5 {
                streams.keep(Box::new(Item(bytes)));
            }
            assert_eq!(streams.spare_len(), kept);
            let heads = streams.spare.capacity() * size_of::<(usize, Box<Item>)>();
            assert_eq!(streams.capacity_bytes(), kept * (bytes + struct_bytes) + heads);
            for left in (0..kept).rev() {
                assert_eq!(*streams.spare(|| Item(7)), Item(bytes));
                assert_eq!(streams.capacity_bytes(), left * (bytes + struct_bytes) + heads);
            }
            assert_eq!(*streams.spare(|| Item(7)), Item(7));
            streams.keep(Box::new(Item(1)));
            for id in 1..10 {
                streams.insert(id, Box::new(Item(0)));
            }
            for id in 2..10 {
                streams.remove(id).unwrap();
            }
            streams.shrink();
            let one = struct_bytes + size_of::<(u32, Box<Item>)>();
            assert_eq!(streams.capacity_bytes(), one);
        }
    }
}
