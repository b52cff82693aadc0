//! An engine that refuses some updates, as one does that has no room or whose counters are held up.

use super::*;

/// Says why an update of these keys is refused, if it is.
type Refuses = dyn Fn(&[Hashed]) -> Option<Undecided> + Send + Sync;

/// The counters of another engine.
pub(super) struct Refusing {
    counters: Arc<dyn Counters>,
    refuses: Box<Refuses>,
}

impl Refusing {
    pub(super) fn new(
        counters: Arc<dyn Counters>,
        refuses: impl Fn(&[Hashed]) -> Option<Undecided> + Send + Sync + 'static,
    ) -> Arc<Refusing> {
        Arc::new(Refusing { counters, refuses: Box::new(refuses) })
    }
}

impl Counters for Refusing {
    fn seed(&self) -> u64 {
        self.counters.seed()
    }

    fn state_words(&self) -> usize {
        self.counters.state_words()
    }

    fn capacity(&self) -> u64 {
        self.counters.capacity()
    }

    fn answers(&self) -> Answers {
        self.counters.answers()
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        match (self.refuses)(keys) {
            Some(why) => Updating::Done(Err(why)),
            None => self.counters.update(keys, now, update),
        }
    }
}
