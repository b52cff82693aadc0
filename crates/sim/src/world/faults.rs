//! Faults, changes of traffic, and the calm at the end of a run.

use super::World;
use crate::limits::{Algorithm, Form, SECOND};
use crate::state::{Event, State};
use crate::tally::Usage;

impl World {
    pub(super) fn change_traffic(&self) {
        let mut state = self.state.borrow_mut();
        if state.calm {
            return;
        }
        let mut lasts = state.rng.wait(SECOND / 2);
        state.traffic = match state.rng.below(100) {
            0..60 => 100,
            60..75 => 600,
            75..90 => 10,
            _ => {
                let period = self.scenario.rules[0].limits[0].period;
                lasts = state.rng.log_between(SECOND / 5, 2 * period);
                state.idle = (state.now, state.now + lasts);
                100
            }
        };
        state.after(lasts, Event::Traffic);
    }

    pub(super) fn fault(&self) -> anyhow::Result<()> {
        let mut state = self.state.borrow_mut();
        if state.calm {
            return Ok(());
        }
        let faults = self.scenario.faults;
        let next = state.rng.wait(faults.every);
        state.after(next, Event::Fault);
        state.tally.faults += 1;
        let sidecars = self.sidecars.len();
        let sidecar = if sidecars > 1 { state.rng.below(sidecars as u64) as usize } else { 0 };
        if self.scenario.machines.is_some() && state.rng.chance(400) {
            return self.fault_of_machines(&mut state, sidecar);
        }
        match state.rng.below(8) {
            0 | 1 => {
                state.note("sidecar crashes (number)", [sidecar as u64, 0, 0, 0]);
                let down = state.rng.log_between(SECOND / 50, 3 * SECOND);
                state.after(down, Event::SidecarUp(sidecar));
                state.sidecar_lives[sidecar] += 1;
                self.sidecars[sidecar].borrow_mut().crash();
            }
            2 | 3 => {
                let frozen = state.rng.log_between(SECOND / 100, 2 * SECOND);
                state.frozen_until[sidecar] = state.now + frozen;
                state.note("sidecar freezes (number, for)", [sidecar as u64, frozen, 0, 0]);
            }
            4 => {
                let proxy = state.rng.below(self.scenario.proxies as u64);
                state.note("process crashes (number)", [proxy, 0, 0, 0]);
                drop(state);
                self.crash_proxy(proxy as usize);
            }
            5 if faults.clock_steps => {
                let step = state.rng.log_between(1_000_000, 7_200 * SECOND) as i64;
                let step = if state.rng.chance(500) { step } else { -step };
                state.stepped[sidecar] += step;
                let stepped = state.stepped[sidecar] as u64;
                state.note("clock steps (by, in two's complement)", [stepped, 0, 0, 0]);
            }
            _ if faults.limits_change => self.change_limits(&mut state)?,
            _ => {}
        }
        Ok(())
    }

    fn change_limits(&self, state: &mut State) -> anyhow::Result<()> {
        let rule = state.rng.below(self.scenario.rules.len() as u64) as usize;
        let mut form = state.rng.pick(&[Form::Base, Form::Scaled, Form::Absent, Form::Other]);
        if form == Form::Other && !self.scenario.faults.algorithms_change {
            form = Form::Scaled;
        }
        state.forms[rule] = form;
        state.note("limits change (rule, form)", [rule as u64, form as u64, 0, 0]);
        self.set_limits(state)
    }

    /// Ends all faults, and starts to measure the usage of the first counter's limit where that is
    /// possible.
    ///
    /// # Errors
    /// If the sidecar cannot start again.
    pub(crate) fn calm(&self) -> anyhow::Result<()> {
        let mut state = self.state.borrow_mut();
        state.note("calm", [0; 4]);
        state.calm = true;
        (state.idle, state.traffic, state.server_frozen_until) = ((0, 0), 100, 0);
        state.frozen_until.fill(0);
        state.parted_until.fill(0);
        state.forms.fill(Form::Base);
        self.set_limits(&state)?;
        state.usage = self.usage(&state);
        drop(state);
        (0..self.sidecars.len()).try_for_each(|sidecar| self.start_sidecar(sidecar))
    }

    /// The span to measure: whole windows, or some periods, after earlier hits have expired.
    fn usage(&self, state: &State) -> Option<Usage> {
        let limits = &self.scenario.rules[0].limits;
        let [limit] = limits.as_slice() else { return None };
        if !self.scenario.is_bounded() || limit.requests > 400 || limit.period > 2 * SECOND {
            return None;
        }
        // An estimate that is rounded up to whole hits costs a large part of a small limit.
        if limit.algorithm == Algorithm::SlidingWindow && limit.requests < 20 {
            return None;
        }
        // A small bucket overflows while no request arrives, with or without leases.
        if limit.algorithm == Algorithm::TokenBucket && limit.burst * 4 < limit.requests {
            return None;
        }
        // Denials of holdings are kept for up to five seconds.
        let denied = if self.scenario.machines.is_some() { 6 * SECOND } else { 0 };
        let over = state.wall(&self.scenario)
            + 2 * limit.period
            + self.scenario.lease_ttl
            + SECOND
            + denied;
        let from = match limit.algorithm {
            Algorithm::FixedWindow | Algorithm::Borrow | Algorithm::Zone => {
                over / limit.period * limit.period + limit.period
            }
            _ => over,
        };
        // Whole cycles of hits that are held for longer than their period, such as two seconds of
        // one.
        let periods = 6;
        let (until, room) = (from + periods * limit.period, periods * limit.requests);
        Some(Usage { from, until, room, admitted: 0 })
    }
}
