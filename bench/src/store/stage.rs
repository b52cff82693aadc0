//! One peer at one number of live keys, and the keys to use next.
//!
//! A peer is built with room for the live keys and filled to seven eighths. Misses use the last eighth. When
//! that is used up, as happens with few keys, the peer is rebuilt.

use super::keys::Keys;
use super::measure::Work;
use super::peer::{Peer, PeerKind};
use super::short;
use anyhow::Context;
use std::fmt;
use std::path::Path;

/// The batch size of unmeasured decisions.
const FILL_BATCH: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Hit,
    Miss,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) keys: u32,
    pub(crate) ask: Ask,
    pub(crate) threads: usize,
    pub(crate) batch: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ask = match self.ask {
            Ask::Hit => "hit",
            Ask::Miss => "miss",
        };
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let Case { threads: count, batch, .. } = self;
        write!(f, "{} keys, {ask}, {count} {threads}, batch {batch}", short(self.keys))
    }
}

pub(crate) struct Stage<'a> {
    kind: &'static PeerKind,
    live: u32,
    keys: &'a Keys,
    /// Live keys in random order, and the number used so far.
    hits: &'a [u32],
    hits_asked: usize,
    dir: &'a Path,
    peer: Option<Box<dyn Peer>>,
    /// The peer has seen the keys below this.
    seen: u32,
}

impl<'a> Stage<'a> {
    /// A stage whose peer is built on first use.
    pub(crate) fn new(
        kind: &'static PeerKind,
        live: u32,
        keys: &'a Keys,
        hits: &'a [u32],
        dir: &'a Path,
    ) -> Stage<'a> {
        Stage { kind, live, keys, hits, hits_asked: 0, dir, peer: None, seen: 0 }
    }

    /// Adds every key below `end` to the peer.
    fn see(&mut self, end: u32) -> anyhow::Result<()> {
        let peer = self.peer.as_deref().context("no peer was built")?;
        let picks: Vec<u32> = (self.seen..end).collect();
        for picks in picks.chunks(FILL_BATCH) {
            peer.decide_each(self.keys, picks);
        }
        self.seen = end;
        Ok(())
    }

    fn rebuild(&mut self) -> anyhow::Result<()> {
        // Frees the old one first, as there may be no room for two.
        self.peer = None;
        let peer = (self.kind.build)(self.live, self.dir);
        self.peer = Some(peer.with_context(|| format!("cannot build {}", self.kind.name))?);
        self.seen = 0;
        self.see(self.live - self.live / 8)
    }

    /// Adds all live keys.
    pub(crate) fn fill(&mut self) -> anyhow::Result<()> {
        self.see(self.live)
    }

    /// Decides `count` keys, in parts for the threads of the case. Misses may take several segments, with a
    /// rebuilt peer in between.
    pub(crate) fn ask(
        &mut self,
        case: &Case,
        count: u32,
        mut ask: impl FnMut(&Work<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut left = count as usize;
        while left > 0 {
            let picks = match case.ask {
                Ask::Hit => self.next_hits(left),
                Ask::Miss => self.next_misses(left)?,
            };
            left -= picks.len();
            // A request contains its key, so reading the key must not be part of the cost.
            let keys = self.keys.in_order(&picks);
            let picks: Vec<u32> = (0..picks.len() as u32).collect();
            let parts: Vec<&[u32]> = picks.chunks(picks.len().div_ceil(case.threads)).collect();
            let peer = self.peer.as_deref().context("no peer was built")?;
            let asked = ask(&Work { peer, keys: &keys, parts: &parts });
            asked.with_context(|| format!("{}, {case}", self.kind.name))?;
        }
        Ok(())
    }

    fn next_hits(&mut self, count: usize) -> Vec<u32> {
        let start = self.hits_asked % self.hits.len();
        self.hits_asked += count;
        self.hits.iter().cycle().skip(start).take(count).copied().collect()
    }

    /// Up to `count` keys that the peer has not seen.
    fn next_misses(&mut self, count: usize) -> anyhow::Result<Vec<u32>> {
        if self.peer.is_none() || self.seen == self.live {
            self.rebuild()?;
        }
        let unseen = self.seen..self.live;
        let picks: Vec<u32> = unseen.take(count).collect();
        self.seen += picks.len() as u32;
        Ok(picks)
    }
}
