//! The open streams of a connection, in the order of their numbers, and what closed ones left to be
//! used again.
//!
//! Numbers only grow, so a new stream is the last one; calls are short, so few are open.

/// What is kept of closed streams, by their memory: those of a dozen usual calls. More are open at once
/// only where the headers of many calls come before the messages of any.
const SPARE_BYTES_MAX: usize = 8 * 1024;

/// A stream that has memory of its own.
pub(crate) trait Capacity {
    /// The memory that it has beside itself.
    fn capacity_bytes(&self) -> usize;
}

#[derive(Debug)]
pub(crate) struct Streams<T> {
    open: Vec<(u32, Box<T>)>,
    /// Each with its memory.
    spare: Vec<(usize, Box<T>)>,
    /// The memory of all of them.
    spare_bytes: usize,
}

impl<T: Capacity> Streams<T> {
    pub(crate) fn new() -> Streams<T> {
        Streams { open: Vec::new(), spare: Vec::new(), spare_bytes: 0 }
    }

    /// The memory that it has, apart from what open streams have beside themselves.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.spare_bytes
            + self.open.len() * size_of::<T>()
            + self.open.capacity() * size_of::<(u32, Box<T>)>()
            + self.spare.capacity() * size_of::<(usize, Box<T>)>()
    }

    /// Gives all memory back that holds nothing.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
        self.spare_bytes = 0;
        self.open.shrink_to_fit();
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// A stream that is not open yet, made of a closed one if there is one.
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

    /// Opens a stream whose number is above all.
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

    /// Closes a stream; it is given back by [`Streams::keep`].
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Option<Box<T>> {
        let index = self.index(id)?;
        Some(self.open.remove(index).1)
    }

    /// Keeps what a closed stream leaves, if there is room for it.
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
            Some((last, _)) if *last > id => {
                self.open.binary_search_by_key(&id, |(open, _)| *open).ok()
            }
            _ => None,
        }
    }
}
