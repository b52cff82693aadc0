//! The open streams of a connection, in the order of their numbers, and what closed ones left to be
//! used again.
//!
//! Numbers only grow, so a new stream is the last one; calls are short, so few are open.

/// What is kept of closed streams.
const SPARE_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Streams<T> {
    open: Vec<(u32, Box<T>)>,
    spare: Vec<Box<T>>,
}

impl<T> Streams<T> {
    pub(crate) fn new() -> Streams<T> {
        Streams { open: Vec::new(), spare: Vec::new() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// A stream that is not open yet, made of a closed one if there is one.
    #[inline]
    pub(crate) fn spare(&mut self, make: impl FnOnce() -> T) -> Box<T> {
        self.spare.pop().unwrap_or_else(|| Box::new(make()))
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

    /// Keeps what a closed stream leaves.
    #[inline]
    pub(crate) fn keep(&mut self, stream: Box<T>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(stream);
        }
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
