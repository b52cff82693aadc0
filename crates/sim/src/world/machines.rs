//! Between sidecars and the server of their counters: commands, answers, deadlines, and what goes wrong there.

use super::World;
use crate::limits::SECOND;
use crate::mutation::Mutation;
use crate::sidecar::SHARED_SEED;
use crate::state::{Event, MachineEvent, State};
use std::rc::Rc;
use tidegate_authority::{Hashing, Previewed, preview};
use tidegate_core::{Descriptor, Entry, Hits, Quota, Request, Timestamp};
use tidegate_limits::Rules;
use tidegate_remote::simulation::{Answer, Command, Next, Server};
use tidegate_store::Hashed;

/// How often unused tokens are looked for.
const TEND_EVERY: u64 = SECOND / 10;
/// The pause before a connection is made again.
const PAUSES: (u64, u64) = (SECOND / 100, SECOND / 2);

impl World {
    pub(super) fn machine(&self, index: usize, life: u32, event: MachineEvent) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let MachineEvent::Command(command) = event {
            // The server does not know whether its client is still there.
            return self.command(state, index, life, &command);
        }
        if life != state.sidecar_lives[index] || !self.sidecars[index].borrow().is_up() {
            return;
        }
        let frozen = state.frozen_until[index].saturating_sub(state.now);
        if frozen > 0 {
            return state.after(frozen, Event::Machine(index, life, event));
        }
        self.set_local(state, index);
        match event {
            MachineEvent::Command(_) => {}
            MachineEvent::Landing(command, answer) => {
                self.landing(state, (index, life), &command, answer);
            }
            MachineEvent::Deadline(command) => self.late(state, (index, life), &command),
            MachineEvent::Connect => self.connect(state, index, life),
            MachineEvent::Tend => {
                state.tally.steps -= 1;
                state.after(TEND_EVERY, Event::Machine(index, life, MachineEvent::Tend));
                self.sidecars[index].borrow().tend();
            }
        }
        self.drive(state, index);
    }

    /// Tells a sidecar its monotonic time.
    pub(super) fn set_local(&self, state: &State, index: usize) {
        let sidecar = self.sidecars[index].borrow();
        if let Some((machine, machines)) =
            sidecar.machine.as_ref().zip(self.scenario.machines.as_ref())
        {
            machine.engine.set_local(machines.clocks[index].at(state.now));
        }
    }

    /// Lets a sidecar go on: sends its commands, and answers its calls.
    pub(super) fn drive(&self, state: &mut State, index: usize) {
        loop {
            let (answered, commands) = {
                let mut sidecar = self.sidecars[index].borrow_mut();
                let Some(machine) = sidecar.machine.as_mut() else { return };
                (machine.work(), machine.depart())
            };
            if answered.is_empty() && commands.is_empty() {
                return;
            }
            for (call, answer) in answered {
                let sidecar = self.sidecars[index].borrow();
                let handled = sidecar.finish(&self.scenario, state, &call, answer);
                drop(sidecar);
                self.reply(state, &call, handled);
            }
            for command in commands {
                self.send(state, index, &command);
            }
        }
    }

    fn send(&self, state: &mut State, index: usize, command: &Rc<Command>) {
        let Some(machines) = &self.scenario.machines else { return };
        let life = state.sidecar_lives[index];
        state.tally.commands += 1;
        let deadline = MachineEvent::Deadline(Rc::clone(command));
        state.after(machines.timeout, Event::Machine(index, life, deadline));
        if state.parted_until[index] > state.now || state.mishap(machines.lost_commands) {
            return state
                .note("command lost (sidecar, command)", [index as u64, command.number(), 0, 0]);
        }
        let slow = state.mishap(machines.slow);
        let delay = self.link_delay(state, slow);
        let command = MachineEvent::Command(Rc::clone(command));
        state.after(delay, Event::Machine(index, life, command));
    }

    fn link_delay(&self, state: &mut State, slow: bool) -> u64 {
        let Some(machines) = &self.scenario.machines else { return 0 };
        let slow = if slow { state.rng.below(3 * machines.timeout) } else { 0 };
        let mean = if state.calm { SECOND / 10_000 } else { machines.delay_mean };
        machines.delay_min.min(SECOND / 2_000) + state.rng.wait(mean) + slow
    }

    /// A command reaches the server.
    fn command(&self, state: &mut State, index: usize, life: u32, command: &Rc<Command>) {
        let Some(machines) = &self.scenario.machines else { return };
        let frozen = state.server_frozen_until.saturating_sub(state.now);
        if frozen > 0 {
            let event = MachineEvent::Command(Rc::clone(command));
            return state.after(frozen, Event::Machine(index, life, event));
        }
        let micros = state.wall(&self.scenario) / 1_000;
        let answer = self.server.borrow_mut().execute(command, micros);
        self.note_windows(state, command);
        state.note(
            "server (sidecar, command, lost)",
            [index as u64, command.number(), u64::from(answer.is_lost()), 0],
        );
        if state.parted_until[index] > state.now || state.mishap(machines.lost_answers) {
            return;
        }
        let delay = self.link_delay(state, false);
        let landing = MachineEvent::Landing(Rc::clone(command), answer);
        state.after(delay, Event::Machine(index, life, landing));
    }

    fn landing(
        &self,
        state: &mut State,
        (index, life): (usize, u32),
        command: &Rc<Command>,
        answer: Answer,
    ) {
        let mut sidecar = self.sidecars[index].borrow_mut();
        let Some(machine) = sidecar.machine.as_mut().filter(|machine| machine.awaits(command))
        else {
            return;
        };
        if state.mutation == Some(Mutation::LossIsDone) && answer.is_lost() {
            machine.engine.mistake_for_done(command);
        } else if let Next::Again(wait) = machine.engine.answered(command, answer) {
            let event = MachineEvent::Command(Rc::clone(command));
            return state.after(wait, Event::Machine(index, life, event));
        }
        machine.landed(command);
    }

    /// A command was not answered in time: the connection is closed, with all that is under way in it.
    fn late(&self, state: &mut State, (index, life): (usize, u32), command: &Rc<Command>) {
        let mut sidecar = self.sidecars[index].borrow_mut();
        let Some(machine) = sidecar.machine.as_mut().filter(|machine| machine.awaits(command))
        else {
            return;
        };
        state.note("no answer (sidecar, command)", [index as u64, command.number(), 0, 0]);
        if state.mutation == Some(Mutation::SilenceIsDone) {
            machine.engine.mistake_for_done(command);
            return machine.landed(command);
        }
        machine.disconnect("no answer in time");
        let pause = state.rng.log_between(PAUSES.0, PAUSES.1);
        state.after(pause, Event::Machine(index, life, MachineEvent::Connect));
    }

    /// Makes a connection. The first thing that the server says is its time.
    fn connect(&self, state: &mut State, index: usize, life: u32) {
        if state.parted_until[index] > state.now || state.server_frozen_until > state.now {
            let pause = state.rng.log_between(PAUSES.0, PAUSES.1);
            return state.after(pause, Event::Machine(index, life, MachineEvent::Connect));
        }
        let before = self.link_delay(state, false).min(state.now);
        let time = state.wall(&self.scenario) - before;
        let mut sidecar = self.sidecars[index].borrow_mut();
        let Some(machine) = sidecar.machine.as_mut() else { return };
        machine.engine.observe(time / 1_000);
        machine.connect();
    }

    /// A fault that only sidecars with shared counters have.
    pub(super) fn fault_of_machines(
        &self,
        state: &mut State,
        sidecar: usize,
    ) -> anyhow::Result<()> {
        let Some(machines) = &self.scenario.machines else { return Ok(()) };
        match state.rng.below(3) {
            0 => {
                let parted = state.rng.log_between(SECOND / 50, 5 * SECOND);
                state.parted_until[sidecar] = state.now + parted;
                state.note("sidecar is parted (number, for)", [sidecar as u64, parted, 0, 0]);
            }
            1 => {
                let frozen = state.rng.log_between(SECOND / 100, 2 * SECOND);
                state.server_frozen_until = state.now + frozen;
                state.note("server freezes (for)", [frozen, 0, 0, 0]);
            }
            _ if machines.forgets > 0 => self.fail_over(state, machines.forgets)?,
            _ => {}
        }
        Ok(())
    }

    /// A replica takes the place of the server, and has not seen its last changes.
    fn fail_over(&self, state: &mut State, forgets: u64) -> anyhow::Result<()> {
        let before = self.room(state)?;
        let micros = state.wall(&self.scenario) / 1_000;
        let since = micros - state.rng.below(forgets) / 1_000;
        let forgotten = self.server.borrow_mut().forget_since(since);
        state.note("failover (changes forgotten)", [forgotten as u64, 0, 0, 0]);
        state.tally.forgotten += u64::from(forgotten > 0);
        let after = self.room(state)?;
        for ((extras, before), after) in state.extras.iter_mut().zip(before).zip(after) {
            for ((extra, before), after) in extras.iter_mut().zip(before).zip(after) {
                // What is left is rounded.
                *extra += (after + 1).saturating_sub(before);
            }
        }
        Ok(())
    }

    /// What each limit of each counter has left in the server.
    fn room(&self, state: &State) -> anyhow::Result<Vec<Vec<u64>>> {
        let (rules, server) = (self.sidecars[0].borrow().rules()?, self.server.borrow());
        let wall = state.wall(&self.scenario);
        self.counters()
            .map(|(_, request)| {
                let limits = look(&server, &rules, &request, wall)?;
                Ok(limits.iter().map(|limit| limit.now.remaining).collect())
            })
            .collect()
    }

    /// A request for each counter, with its number.
    fn counters(&self) -> impl Iterator<Item = (u32, Request)> {
        let rules = self.scenario.rules.iter().enumerate();
        rules.flat_map(|(index, rule)| {
            (0..rule.values).map(move |value| {
                let entry = Entry::new(format!("k{index}"), format!("v{value}"));
                let descriptors = vec![Descriptor::new(vec![entry])];
                let request = Request { domain: "sim".to_owned(), descriptors, hits: Hits::PEEK };
                (rule.first + value, request)
            })
        })
    }

    /// Finds the keys of first-hit windows: when one opens is visible in the server alone.
    pub(super) fn find_first_hits(&self) -> anyhow::Result<()> {
        if self.scenario.machines.is_none() {
            return Ok(());
        }
        let (rules, server) = (self.sidecars[0].borrow().rules()?, self.server.borrow());
        let mut found = self.first_hits.borrow_mut();
        for (number, request) in self.counters() {
            for limit in look(&server, &rules, &request, self.scenario.wall)? {
                if matches!(limit.limit.quota, Quota::FirstHitWindow(_)) {
                    found.extend(limit.keys.iter().map(|key| (*key, number)));
                }
            }
        }
        Ok(())
    }

    /// Notes the first-hit windows that are open after a command.
    fn note_windows(&self, state: &mut State, command: &Command) {
        let (found, server) = (self.first_hits.borrow(), self.server.borrow());
        let wall = state.wall(&self.scenario);
        for (key, number) in command.keys().filter_map(|key| Some((key, found.get(key)?))) {
            let Some(entry) = server.entry(key, wall / 1_000) else { continue };
            let rule = self.scenario.rules.iter().rev().find(|rule| rule.first <= *number);
            let limit = rule.and_then(|rule| rule.limits.first());
            let Some(limit) = limit else { continue };
            // The first word is when the window opened.
            if let Some(opened) = entry.state.first() {
                for bound in &mut state.bounds[*number as usize] {
                    bound.charged(opened + limit.period);
                }
            }
        }
    }
}

/// The limits of a request, by the states in the server.
fn look(
    server: &Server,
    rules: &Rules,
    request: &Request,
    wall: u64,
) -> anyhow::Result<Vec<Previewed>> {
    let now = Timestamp::from_nanos(wall);
    let read = |key: &Hashed, words: &mut [u64]| {
        read(server, key, words, wall);
        anyhow::Ok(())
    };
    Ok(preview(rules, request, Hashing::undivided(SHARED_SEED), now, read)?.1)
}

fn read(server: &Server, key: &Hashed, words: &mut [u64], wall: u64) {
    let entry = server.entry(key, wall / 1_000).filter(|entry| !entry.is_expired(wall));
    if let Some(state) = entry.as_ref().and_then(|entry| entry.state.get(..words.len())) {
        words.copy_from_slice(state);
    }
}
