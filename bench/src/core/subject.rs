//! What can be measured: something that answers a run of picks.

use anyhow::ensure;

/// Something that is ready to answer.
pub(super) trait Work {
    /// Answers for every pick, and says for how many of them yes. Only this is measured.
    fn decide_each(&mut self, picks: &[u32]) -> u64;
}

/// How nearly all answers must be, lest something else was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Yes,
    No,
}

type Prepare = Box<dyn Fn() -> anyhow::Result<Box<dyn Work>>>;

/// A thing to measure, under a name of its own.
pub(super) struct Subject {
    pub(super) name: String,
    /// The name of the subject that it is compared with.
    pub(super) peer: Option<String>,
    answers: Answers,
    prepare: Prepare,
    /// How many rules it is made of.
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

    /// Makes it ready.
    pub(super) fn prepare(&self) -> anyhow::Result<Box<dyn Work>> {
        (self.prepare)()
    }

    /// Holds the answers to what they should be. Where all should be no, a token or two may have
    /// come back meanwhile.
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
