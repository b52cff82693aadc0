//! Deliberate faults that prove that the checks can fail.

/// A fault between the filter and the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Leases appear to last longer.
    LeasesLast,
    /// Returned tokens are returned to the counter twice.
    ReturnsCountTwice,
    /// Writes of shared data always succeed, even after another worker's write.
    WritesAlwaysSucceed,
    /// A denial arrives as an allowed request.
    DenialsAreIgnored,
    /// A lease appears to have one more token.
    LeasesGrow,
    /// The sidecar forgets its charges when it restarts.
    CountsAreForgotten,
    /// A debit that arrives again counts again.
    DebitsCountTwice,
    /// A debit is answered and not counted.
    DebitsAreForgotten,
    /// A debit is counted and then refused as if it were not.
    CountedDebitsAreRefused,
    /// What a refill brings is put into the holding twice.
    RefillsCountTwice,
    /// Tokens are given back, and stay in the holding too.
    GivenBackIsKept,
    /// A sidecar decides by its own clock instead of that of the shared counters.
    OwnClock,
    /// A command that was not answered counts as done.
    SilenceIsDone,
    /// A command that has lost against another sidecar counts as done.
    LossIsDone,
    /// The server of the shared counters forgets keys before their end.
    KeysExpireEarly,
}

impl Mutation {
    /// All faults.
    pub const ALL: [Mutation; 15] = [
        Mutation::LeasesLast,
        Mutation::ReturnsCountTwice,
        Mutation::WritesAlwaysSucceed,
        Mutation::DenialsAreIgnored,
        Mutation::LeasesGrow,
        Mutation::CountsAreForgotten,
        Mutation::DebitsCountTwice,
        Mutation::DebitsAreForgotten,
        Mutation::CountedDebitsAreRefused,
        Mutation::RefillsCountTwice,
        Mutation::GivenBackIsKept,
        Mutation::OwnClock,
        Mutation::SilenceIsDone,
        Mutation::LossIsDone,
        Mutation::KeysExpireEarly,
    ];

    /// Whether costs at the end of streams show it. Others would break those first.
    pub(crate) fn is_of_debits(self) -> bool {
        matches!(
            self,
            Mutation::DebitsCountTwice
                | Mutation::DebitsAreForgotten
                | Mutation::CountedDebitsAreRefused
        )
    }
}
