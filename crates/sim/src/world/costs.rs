//! Streams with costs that their end knows, and the end of a run, when all of them are settled.

use super::World;
use super::requests::Facts;
use crate::ledger::Key;
use crate::limits::SECOND;
use crate::meters::{ESTIMATE, ESTIMATED, LEASED, METERS};
use crate::state::{SimStream, State};
use tidegate::host::RequestFacts;

/// The longest time until all costs are settled, once no requests arrive and nothing fails. Twice as long as
/// the filter waits for a silent sidecar.
const SETTLED_WITHIN: u64 = 30 * SECOND;

/// The cost that the end of a stream knows, if it has one.
pub(super) struct Cost(Option<u64>);

impl RequestFacts for Cost {
    fn header<T>(&self, _name: &str, _read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }

    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let cost = self.0.filter(|_| path.last() == Some(&"cost"))?;
        Some(read(&(cost as f64).to_le_bytes()))
    }
}

impl World {
    /// Gives a request costs, now and then.
    pub(super) fn add_costs(
        &self,
        state: &mut State,
        facts: &mut Facts,
        needs: &mut Vec<(Key, u64)>,
    ) -> (Vec<usize>, u64) {
        if self.scenario.metered == 0 || state.usage.is_some() {
            return (Vec::new(), 0);
        }
        if !state.rng.chance(self.scenario.metered) {
            return (Vec::new(), 0);
        }
        let meters: Vec<usize> = (0..METERS).filter(|_| state.rng.chance(500)).collect();
        for meter in &meters {
            facts.0.push((format!("m{meter}"), "v0".to_owned()));
            if *meter == ESTIMATED {
                needs.push(((self.scenario.first_meter() + meter) as Key, ESTIMATE));
            }
        }
        (meters, state.rng.below(3 * ESTIMATE))
    }

    /// The cost of a stream that has ended, which its worker owes from now on. Others have none.
    pub(super) fn owe(&self, worker: usize, ended: &SimStream) -> Cost {
        if !ended.passed || ended.meters.is_empty() {
            return Cost(None);
        }
        let mut state = self.state.borrow_mut();
        let proxy = worker / self.scenario.workers;
        let process = (proxy, state.lives[proxy]);
        for meter in &ended.meters {
            state.meters.owe(process, *meter, ended.cost);
        }
        Cost(Some(ended.cost))
    }

    /// Lets no more requests arrive, and goes on until all costs are counted.
    ///
    /// # Errors
    /// If the simulator itself cannot continue.
    pub(crate) fn settle(&self) -> anyhow::Result<()> {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let until = state.now + SETTLED_WITHIN;
        drop(state);
        loop {
            let Some(left) = self.unsettled()? else { return Ok(()) };
            let mut state = self.state.borrow_mut();
            if state.now > until {
                state.fail(left);
            }
            if state.broken.is_some() {
                return Ok(());
            }
            drop(state);
            self.step()?;
        }
    }

    /// What is still to be counted, if anything.
    fn unsettled(&self) -> anyhow::Result<Option<String>> {
        let state = self.state.borrow();
        let left = state.meters.uncounted(&state.lives);
        if let Some((meter, costs)) = left.iter().find(|(meter, _)| *meter != LEASED) {
            return Ok(Some(format!("meter {meter}: {costs:?} owed and never debited")));
        }
        if left.is_empty() {
            return Ok(None);
        }
        let least = state.meters.leased_at_least(&state.lives);
        let now = state.timestamp(&self.scenario, 0);
        let counted = self.sidecars[0].borrow().metered(LEASED, now)?;
        let broken = format!("meter {LEASED}: {counted} counted of {least} that are owed");
        Ok((counted < least).then_some(broken))
    }
}
