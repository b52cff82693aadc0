//! A subject of measurement: it answers a series of picks.

use anyhow::ensure;

/// A subject that is set up.
pub(super) trait Work {
    /// Answers every pick, and returns the number of positive answers. Only this is measured.
    fn decide_each(&mut self, picks: &[u32]) -> u64;
}

/// The expected answers. Nearly all must be as expected, or something else was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Yes,
    No,
}

type Prepare = Box<dyn Fn() -> anyhow::Result<Box<dyn Work>>>;

/// A subject and its name.
pub(super) struct Subject {
    pub(super) name: String,
    /// The name of the peer that it is compared with.
    pub(super) peer: Option<String>,
    answers: Answers,
    prepare: Prepare,
    /// The number of its rules.
    pub(super) rules: u32,
}

impl Subject {
    pub(super) fn new(
        name: impl Into<String>,
        answers: Answers,
        prepare: impl Fn() -> anyhow::Result<Box<dyn Work>> + 'static,
    ) -> Subject {
        let (name, prepare) = (name.into(), Box::new(prepare));
        Subject { name, peer: None, answers, prepare, rules: 0 }
    }

    pub(super) fn beside(self, peer: impl Into<String>) -> Subject {
        Subject { peer: Some(peer.into()), ..self }
    }

    pub(super) fn with_rules(self, rules: u32) -> Subject {
        Subject { rules, ..self }
    }

    /// Sets it up.
    pub(super) fn prepare(&self) -> anyhow::Result<Box<dyn Work>> {
        (self.prepare)()
    }

    /// Checks the answers. Where all should be negative, a token or two may be refilled during the run.
    pub(super) fn check(&self, yes: u64, asked: usize) -> anyhow::Result<()> {
        let asked = asked as u64;
        let is_right = match self.answers {
            Answers::Yes => yes == asked,
            Answers::No => yes <= asked / 50,
        };
        ensure!(is_right, "{}: {yes} of {asked} answers were yes", self.name);
        Ok(())
    }
}
