//! Requests that wait for refills: one refill of a counter is under way in this process, and those that come meanwhile
//! wait together for the next.
//!
//! Bounds: requests that wait, and refills under way. Beyond them a request is refused, as by full counters: the failure
//! mode is not for loads that clients can make. How long a refill takes is bounded by the shared counters.
//!
//! A flight that ends in any way, even by a panic or the end of its runtime, answers all that wait for it.

use super::desk::KNOWN_MAX;
use super::refill::Refilled;
use super::{Holdings, Target};
use crate::counters::Undecided;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tidegate_core::Timestamp;
use tidegate_store::Hashed;

/// A waiting request takes some 100 bytes here.
const WAITING_MAX: usize = 65_536;
/// A refill under way takes about a kilobyte, here and in the engine.
const FLIGHTS_MAX: usize = 16_384;

/// What a request needs of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Need {
    /// Hits of the request: all or none.
    pub(crate) hits: u64,
    /// Hits of requests that wait elsewhere: as many as there are.
    pub(crate) waiting: u64,
    /// Hits wanted for later requests elsewhere.
    pub(crate) wanted: u64,
}

/// Requests that wait for the same refill.
#[derive(Debug, Default)]
pub(super) struct Cohort {
    state: Mutex<CohortState>,
}

#[derive(Debug, Default)]
struct CohortState {
    needs: Vec<Need>,
    wakers: Vec<Waker>,
    result: Option<Result<(), Undecided>>,
}

/// A request that waits for a refill.
#[derive(Debug)]
pub(crate) struct Waiting {
    cohort: Arc<Cohort>,
    /// The index of its waker.
    waker: Option<usize>,
}

impl Cohort {
    fn state(&self) -> MutexGuard<'_, CohortState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All tokens that its requests need.
    fn need(&self) -> u64 {
        let state = self.state();
        state
            .needs
            .iter()
            .fold(0, |sum, need| sum.saturating_add(need.hits).saturating_add(need.waiting))
    }

    fn answer(&self, result: Result<(), Undecided>) {
        let wakers = {
            let mut state = self.state();
            state.result.get_or_insert(result);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Waiting {
    type Output = Result<(), Undecided>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut state = this.cohort.state();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        match this.waker.and_then(|index| state.wakers.get_mut(index)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                this.waker = Some(state.wakers.len());
                state.wakers.push(context.waker().clone());
            }
        }
        Poll::Pending
    }
}

impl Holdings {
    /// Waits for a refill that serves `need`.
    pub(super) fn refill_for(
        self: &Arc<Self>,
        target: Target,
        need: Need,
    ) -> Result<Waiting, Undecided> {
        let key = self.key(&target);
        let mut desk = self.desk();
        if desk.waiting >= WAITING_MAX {
            return Err(busy());
        }
        let flights = desk.flights;
        let counter = desk.counters.entry(key).or_default();
        let (cohort, takes_off) = match &counter.flight {
            Some(_) => (counter.forming.get_or_insert_default().clone(), false),
            None if flights >= FLIGHTS_MAX => {
                desk.forget_unused(key);
                return Err(busy());
            }
            None => (counter.flight.insert(Arc::default()).clone(), true),
        };
        cohort.state().needs.push(need);
        desk.waiting += 1;
        desk.flights += usize::from(takes_off);
        drop(desk);
        if takes_off {
            self.take_off(key, target, cohort.clone());
        }
        Ok(Waiting { cohort, waker: None })
    }

    /// Has a holding that runs low refilled: soon, if it has tokens for a while, so that many refills go together.
    pub(super) fn refill_low(self: &Arc<Self>, target: Target, now: Timestamp) {
        let mut desk = self.desk();
        let known = desk.counters.get(&self.key(&target)).and_then(|of| of.known.as_ref());
        if known.is_some_and(|known| known.is_steady(now)) && desk.low.len() < KNOWN_MAX {
            desk.low.push(target);
            return;
        }
        drop(desk);
        self.refill_ahead(target);
    }

    /// Refills the holdings that run low. To be called at least ten times a second.
    pub(super) fn refill_all_low(self: &Arc<Self>) {
        let low = std::mem::take(&mut self.desk().low);
        low.into_iter().for_each(|target| self.refill_ahead(target));
    }

    /// Refills a holding, unless that is under way.
    fn refill_ahead(self: &Arc<Self>, target: Target) {
        let key = self.key(&target);
        let mut desk = self.desk();
        let has_room = desk.flights < FLIGHTS_MAX;
        let counter = desk.counters.entry(key).or_default();
        if counter.flight.is_some() || !has_room {
            desk.forget_unused(key);
            return;
        }
        let cohort = counter.flight.insert(Arc::default()).clone();
        desk.flights += 1;
        drop(desk);
        self.take_off(key, target, cohort);
    }

    fn take_off(self: &Arc<Self>, key: Hashed, target: Target, cohort: Arc<Cohort>) {
        let mut flight = Flight { holdings: self.clone(), key, cohort: Some(cohort) };
        (self.shared.spawn)(Box::pin(async move {
            while let Some(cohort) = &flight.cohort {
                let needs = cohort.state().needs.clone();
                let refilled = flight.holdings.refill(&target, key, &needs).await;
                flight.land(refilled);
            }
        }));
    }
}

/// A refill under way.
struct Flight {
    holdings: Arc<Holdings>,
    key: Hashed,
    /// Those who wait for it; none once it is over.
    cohort: Option<Arc<Cohort>>,
}

impl Flight {
    /// Answers the requests that waited. If others wait and need more than there is, goes on with them.
    fn land(&mut self, refilled: Result<Refilled, Undecided>) {
        let mut desk = self.holdings.desk();
        let waiting_for = |cohort: &Arc<Cohort>| cohort.state().needs.len();
        let landed = self.cohort.take();
        let mut next = desk.counters.get_mut(&self.key).and_then(|of| of.forming.take());
        let mut served = None;
        if let (Ok(refilled), Some(cohort)) = (&refilled, &next)
            && refilled.held >= cohort.need()
        {
            served = next.take();
        }
        for cohort in landed.iter().chain(&served) {
            desk.waiting = desk.waiting.saturating_sub(waiting_for(cohort));
        }
        if let Some(of) = desk.counters.get_mut(&self.key) {
            of.flight.clone_from(&next);
        }
        if next.is_none() {
            desk.flights = desk.flights.saturating_sub(1);
            desk.forget_unused(self.key);
        }
        drop(desk);
        self.cohort = next;
        let result = refilled.map(|_| ());
        for cohort in landed.iter().chain(&served) {
            cohort.answer(result.clone());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        while self.cohort.is_some() {
            let cause = "the refill was given up".to_owned();
            self.land(Err(Undecided::Unreachable { cause }));
        }
    }
}

fn busy() -> Undecided {
    Undecided::Unreachable { cause: "too many requests wait for them".to_owned() }
}
