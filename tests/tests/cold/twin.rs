//! Clients that know what their counters must be.
//!
//! Each counter belongs to one client, which asks about it once at a time. So every answer is known beforehand: whether the
//! hits are allowed, and how many remain. A call that was lost may have counted or not; the next answer tells.

use crate::rows::Counted;
use crate::scene::{RULES, Rule};
use anyhow::{Context, bail, ensure};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::wait;
use tidegate_wire::rls::{Code, RateLimitRequest, RateLimitResponse};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tonic::{Code as Status, Status as Failed};

/// The counters of one call at the end.
const SWEPT: usize = 8;
/// How often a client asks while something else goes on. Faster, clients only take the processor from what they wait for.
const PACE: Duration = Duration::from_millis(5);
/// One of so many counters is used up.
const USED_UP: usize = 50;

/// A counter, and between which bounds its count is. There may be many millions, so these are small numbers.
#[derive(Debug, Clone, Copy)]
struct Counter {
    number: u32,
    rule: u8,
    low: u8,
    high: u8,
}

impl Counter {
    fn rule(&self) -> &'static Rule {
        &RULES[usize::from(self.rule)]
    }

    fn limit(&self) -> u32 {
        self.rule().limit
    }

    fn low(&self) -> u32 {
        self.low.into()
    }

    fn high(&self) -> u32 {
        self.high.into()
    }

    /// Sets the bounds. Every limit fits into a byte.
    fn set(&mut self, low: u32, high: u32) {
        (self.low, self.high) = (low as u8, high as u8);
    }
}

/// What happens to calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Each is decided.
    Fair,
    /// The sidecar may be killed: its calls are lost, and the client connects again. Who waits in vain for a fetch that was
    /// killed is denied.
    Kills,
    /// Databases may be away: a call may be denied whatever its counters are.
    Away,
    /// Both.
    KillsAndAway,
}

impl Weather {
    fn kills(self) -> bool {
        matches!(self, Weather::Kills | Weather::KillsAndAway)
    }

    fn is_away(self) -> bool {
        matches!(self, Weather::Away | Weather::KillsAndAway)
    }
}

/// What became of calls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Calls {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Denied, though the counters had room.
    pub(crate) denied_without: u64,
    /// Tried again, as there was no room or a counter was locked.
    pub(crate) again: u64,
    /// Perhaps counted.
    pub(crate) lost: u64,
}

impl Calls {
    pub(crate) fn decided(&self) -> u64 {
        self.allowed + self.denied
    }

    fn add(&mut self, other: &Calls) {
        let Calls { allowed, denied, denied_without, again, lost } = other;
        self.allowed += allowed;
        self.denied += denied;
        self.denied_without += denied_without;
        self.again += again;
        self.lost += lost;
    }
}

/// When a client had its last decision. Of many that wait for room in the store, chance says which one gets it, so one may
/// wait for long while the others go on, but not all.
#[derive(Clone)]
struct LastDecision(Arc<Mutex<Instant>>);

impl LastDecision {
    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Ends when no client has had a decision for longer than a retry takes.
    async fn is_long_ago(&self) {
        let began = Instant::now();
        let deadline = || self.get().max(began) + wait::bound(wait::RETRY);
        while Instant::now() < deadline() {
            sleep_until(deadline()).await;
        }
    }
}

/// One connection, with counters of its own.
pub(crate) struct Client {
    dir: PathBuf,
    rls: Rls,
    counters: Vec<Counter>,
    /// The indices of those that hits were asked of.
    asked: BTreeSet<usize>,
    random: Xoshiro256PlusPlus,
    weather: Weather,
    calls: Calls,
    /// Of all clients.
    last_decision: LastDecision,
}

impl Client {
    async fn connect(
        dir: &Path,
        counters: Vec<Counter>,
        seed: u64,
        weather: Weather,
        last_decision: LastDecision,
    ) -> anyhow::Result<Client> {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (dir, rls, asked) = (dir.to_owned(), Rls::at(dir).await?, BTreeSet::new());
        let calls = Calls::default();
        Ok(Client { dir, rls, counters, asked, random, weather, calls, last_decision })
    }

    /// One of so many, the first ones most often (Zipf's law with exponent 1).
    fn zipf(&mut self) -> usize {
        let most = self.counters.len() as f64;
        // Of 53 bits, each number of [0, 1) is as likely.
        let uniform = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        (most.powf(uniform) as usize - 1).min(self.counters.len() - 1)
    }

    /// Two calls: about the next two counters in a scan over all, and about one that is asked for often.
    async fn step(&mut self, scan: usize) -> anyhow::Result<()> {
        let count = self.counters.len();
        let first = 2 * scan % count;
        self.ask(vec![first, (first + 1) % count], 1).await?;
        let often = self.zipf();
        let hits = 1 + (self.random.next_u64() >> 63) as u32;
        self.ask(vec![often], hits).await
    }

    /// Takes hits from each of these counters, or from none.
    async fn ask(&mut self, about: Vec<usize>, hits: u32) -> anyhow::Result<()> {
        let counters: Vec<Counter> = about.iter().map(|index| self.counters[*index]).collect();
        self.asked.extend(&about);
        let mut asked = ask_about(&counters);
        asked.hits_addend = hits;
        let answer = match self.call(asked).await {
            Ok(answer) => answer,
            // What is in memory stays there while nothing can move.
            Err(failed) if self.weather.is_away() && failed.code() == Status::ResourceExhausted => {
                self.calls.again += 1;
                return Ok(());
            }
            Err(failed) if self.weather.kills() => {
                self.calls.lost += 1;
                for index in &about {
                    let counter = &mut self.counters[*index];
                    counter.set(counter.low(), (counter.high() + hits).min(counter.limit()));
                }
                // Shown if the test fails.
                println!("lost: {}", failed.message());
                return self.connect_again().await;
            }
            Err(failed) => bail!("{counters:?}: {failed}"),
        };
        let judged = self.judge(&counters, hits, &answer);
        let after = judged.with_context(|| format!("{hits} of {counters:?}: {answer:?}"))?;
        for (index, count) in about.iter().zip(after) {
            let Some(count) = count else { continue };
            self.counters[*index].set(count, count);
        }
        Ok(())
    }

    /// The counts after an answer, which must be one that the twin would give. None of those that it does not tell.
    fn judge(
        &mut self,
        counters: &[Counter],
        hits: u32,
        answer: &RateLimitResponse,
    ) -> anyhow::Result<Vec<Option<u32>>> {
        ensure!(answer.statuses.len() == counters.len(), "so many statuses");
        let is_allowed = answer.overall_code() == Code::Ok;
        let must_deny = counters.iter().any(|counter| counter.low() + hits > counter.limit());
        let may_deny = counters.iter().any(|counter| counter.high() + hits > counter.limit());
        ensure!(!(is_allowed && must_deny), "more was allowed than the limit");
        if !is_allowed && self.weather != Weather::Fair {
            self.calls.denied += 1;
            self.calls.denied_without += u64::from(!may_deny);
            return Ok(vec![None; counters.len()]);
        }
        ensure!(is_allowed || may_deny, "it was denied, but has room");
        let taken = if is_allowed { hits } else { 0 };
        let mut after = Vec::new();
        for (counter, status) in counters.iter().zip(&answer.statuses) {
            let count = counter.limit().checked_sub(status.limit_remaining).context("a rest")?;
            let is_known = (counter.low() + taken..=counter.high() + taken).contains(&count);
            ensure!(is_known, "{count} is counted of {counter:?}");
            after.push(Some(count));
        }
        match is_allowed {
            true => self.calls.allowed += 1,
            false => self.calls.denied += 1,
        }
        Ok(after)
    }

    /// Asks until there is room in the store and no counter is locked. Nothing is counted meanwhile.
    async fn call(&mut self, asked: RateLimitRequest) -> Result<RateLimitResponse, Failed> {
        let (rls, weather, again) = (self.rls.clone(), self.weather, &mut self.calls.again);
        let mut refused = None;
        let deciding = async {
            let mut looks = wait::looks();
            loop {
                looks.tick().await;
                let answer = wait::within("an answer", wait::RETRY, rls.call(asked.clone())).await;
                match answer.unwrap_or_else(|error| Err(Failed::internal(error.to_string()))) {
                    Err(status) if is_for_now(&status, weather) => {
                        *again += 1;
                        refused = Some(status);
                    }
                    decided => return decided,
                }
            }
        };
        let decided = tokio::select! {
            decided = deciding => decided,
            () = self.last_decision.is_long_ago() => {
                let waited = wait::bound(wait::RETRY);
                return Err(Failed::internal(format!("no decision for {waited:?}; last {refused:?}")));
            }
        };
        self.last_decision.is_now();
        decided
    }

    async fn connect_again(&mut self) -> anyhow::Result<()> {
        let dir = &self.dir;
        let connecting = async {
            let mut looks = wait::looks();
            loop {
                looks.tick().await;
                if let Ok(rls) = Rls::at(dir).await {
                    return rls;
                }
            }
        };
        self.rls = wait::within("a connection", wait::START, connecting).await?;
        Ok(())
    }

    /// Uses up some counters hit by hit, and one hit more of each.
    async fn use_up(&mut self) -> anyhow::Result<()> {
        for index in (0..self.counters.len()).step_by(USED_UP) {
            for _ in self.counters[index].low()..=self.counters[index].limit() {
                self.ask(vec![index], 1).await?;
            }
            let counter = self.counters[index];
            ensure!([counter.low(), counter.high()] == [counter.limit(); 2], "not used up");
        }
        Ok(())
    }

    /// Reads the counts of all that were asked for, and of one in so many others, which must be the twin's.
    async fn sweep(&mut self, one_in: usize) -> anyhow::Result<()> {
        let others = (0..self.counters.len()).step_by(one_in);
        let swept: BTreeSet<usize> = others.chain(self.asked.iter().copied()).collect();
        let swept: Vec<usize> = swept.into_iter().collect();
        for swept in swept.chunks(SWEPT) {
            let counters: Vec<Counter> = swept.iter().map(|index| self.counters[*index]).collect();
            let mut asked = ask_about(&counters);
            asked.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(0));
            let answer = self.call(asked).await?;
            ensure!(answer.statuses.len() == counters.len(), "so many statuses: {answer:?}");
            for (counter, status) in counters.iter().zip(&answer.statuses) {
                let count = counter.limit().checked_sub(status.limit_remaining);
                let count = count.with_context(|| format!("{counter:?}: {status:?}"))?;
                let is_known = (counter.low()..=counter.high()).contains(&count);
                ensure!(is_known, "{count} is counted of {counter:?} at the end");
            }
        }
        Ok(())
    }
}

/// The rule of a narrow counter.
pub(crate) fn narrow_rule(number: u32) -> usize {
    number as usize % (RULES.len() - 1)
}

/// Whether a refusal ends soon.
fn is_for_now(status: &Failed, weather: Weather) -> bool {
    match status.code() {
        Status::Aborted => true,
        Status::ResourceExhausted => !weather.is_away(),
        _ => false,
    }
}

/// A call about these counters.
fn ask_about(counters: &[Counter]) -> RateLimitRequest {
    let values: Vec<String> = counters.iter().map(|counter| counter.number.to_string()).collect();
    let of = counters.iter().zip(&values);
    let about: Vec<(&str, &str)> = of.map(|(of, value)| (of.rule().key, &**value)).collect();
    request("test", &about)
}

/// All clients, and how far they are.
pub(crate) struct Crowd {
    clients: Vec<Client>,
}

impl Crowd {
    /// Clients that share so many counters, of which this many have a wide state.
    pub(crate) async fn connect(
        dir: &Path,
        clients: u32,
        (narrow, wide): (u32, u32),
        weather: Weather,
    ) -> anyhow::Result<Crowd> {
        let narrow = (0..narrow).map(|number| (narrow_rule(number), number));
        let wide = (0..wide).map(|number| (crate::scene::WIDE, number));
        let all = narrow.chain(wide).map(|(rule, number)| Counted { rule, number, count: 0 });
        Crowd::connect_counted(dir, clients, all, weather).await
    }

    /// Clients that share these counters.
    pub(crate) async fn connect_counted(
        dir: &Path,
        clients: u32,
        counters: impl Iterator<Item = Counted>,
        weather: Weather,
    ) -> anyhow::Result<Crowd> {
        let counter = |Counted { rule, number, count }| {
            let (rule, count) = (rule as u8, count as u8);
            Counter { number, rule, low: count, high: count }
        };
        // Wide ones among the others.
        let mut all: Vec<Counter> = counters.map(counter).collect();
        all.sort_by_key(|counter| counter.number.wrapping_mul(2_654_435_761));
        let mut crowd = Crowd { clients: Vec::new() };
        let last_decision = LastDecision(Arc::new(Mutex::new(Instant::now())));
        for number in 0..clients {
            let own = all.iter().skip(number as usize).step_by(clients as usize).copied();
            let (own, seed) = (own.collect(), number.into());
            let client = Client::connect(dir, own, seed, weather, last_decision.clone()).await?;
            crowd.clients.push(client);
        }
        Ok(crowd)
    }

    /// Has each scan its counters so many times.
    pub(crate) async fn scan(&mut self, rounds: usize) -> anyhow::Result<()> {
        self.each(move |mut client| async move {
            for scan in 0..rounds * client.counters.len().div_ceil(2) {
                client.step(scan).await?;
            }
            Ok(client)
        })
        .await
    }

    /// Has all ask until `act` has ended, which is told how many calls have been decided.
    pub(crate) async fn during<T>(
        &mut self,
        act: impl AsyncFnOnce(watch::Receiver<u64>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (is_over, over) = watch::channel(false);
        let (decided, seen) = watch::channel(0);
        let asking = self.each(move |mut client| {
            let (over, decided) = (over.clone(), decided.clone());
            async move {
                let mut scan = 0;
                let mut turns = tokio::time::interval(PACE);
                turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !*over.borrow() {
                    turns.tick().await;
                    let before = client.calls.decided();
                    client.step(scan).await?;
                    scan += 1;
                    decided.send_modify(|decided| *decided += client.calls.decided() - before);
                }
                Ok(client)
            }
        });
        let acting = async {
            let acted = act(seen).await;
            is_over.send_replace(true);
            acted
        };
        let (asked, acted) = tokio::join!(asking, acting);
        // What a client found explains why an act failed.
        asked?;
        acted
    }

    /// Checks the count of each counter.
    pub(crate) async fn sweep(&mut self) -> anyhow::Result<()> {
        self.sweep_one_in(1).await
    }

    /// Checks the count of each counter that was asked for, and of one in so many others.
    pub(crate) async fn sweep_one_in(&mut self, others: usize) -> anyhow::Result<()> {
        self.each(move |mut client| async move {
            client.sweep(others).await?;
            Ok(client)
        })
        .await
    }

    /// Has exactly the limit be allowed of some counters.
    pub(crate) async fn use_up(&mut self) -> anyhow::Result<()> {
        self.each(|mut client| async move {
            client.use_up().await?;
            Ok(client)
        })
        .await
    }

    /// What happens to calls from now on.
    pub(crate) fn set_weather(&mut self, weather: Weather) {
        self.clients.iter_mut().for_each(|client| client.weather = weather);
    }

    /// Connects again, as after a restart.
    pub(crate) async fn connect_again(&mut self) -> anyhow::Result<()> {
        for client in &mut self.clients {
            client.connect_again().await?;
        }
        Ok(())
    }

    pub(crate) fn calls(&self) -> Calls {
        let mut all = Calls::default();
        self.clients.iter().for_each(|client| all.add(&client.calls));
        all
    }

    async fn each<F>(&mut self, act: impl Fn(Client) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<Client>> + Send + 'static,
    {
        let mut acting = JoinSet::new();
        for client in self.clients.drain(..) {
            acting.spawn(act(client));
        }
        while let Some(client) = acting.join_next().await {
            self.clients.push(client??);
        }
        Ok(())
    }
}
