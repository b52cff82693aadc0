//! Reports beside the decision: names of statistics, headers and filter state.

/// Options of reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reports {
    /// Between `tidegate.` and the names of statistics and of filter state; may be empty.
    pub stat_prefix: String,
    /// The header of responses that names the limits that would have denied their request, in lower
    /// case.
    pub shadow_header: Option<String>,
    /// The requests with filter state for access logs.
    pub filter_state: FilterState,
}

/// The requests with filter state for access logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FilterState {
    /// Those that would have been denied.
    #[default]
    Shadow,
    /// Also those that are denied. Attackers choose their number, and each costs a call.
    All,
}
