//! Deliberate faults, to prove that the checks can fail.

/// A fault that is put between the filter and the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Leases look as if they lasted longer than they do.
    LeasesLast,
    /// Tokens that are given back are given to the counter twice.
    ReturnsCountTwice,
    /// Writing shared data always succeeds, even when another worker was first.
    WritesAlwaysSucceed,
    /// A denial arrives as if the request was allowed.
    DenialsAreIgnored,
    /// A lease looks as if it had a token more.
    LeasesGrow,
    /// The sidecar forgets what it charged when it is started again.
    CountsAreForgotten,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 6] = [
        Mutation::LeasesLast,
        Mutation::ReturnsCountTwice,
        Mutation::WritesAlwaysSucceed,
        Mutation::DenialsAreIgnored,
        Mutation::LeasesGrow,
        Mutation::CountsAreForgotten,
    ];
}
