//! Flags of `tidegate top` and `tidegate tail`.

use super::sidecar::SidecarOptions;
use super::times;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// What is asked, and how it is shown. For single decisions.
#[derive(Debug, Args)]
pub(crate) struct TailOptions {
    #[command(flatten)]
    pub(crate) sidecar: SidecarOptions,

    /// Only those that a limit denied
    #[arg(long)]
    pub(crate) denied: bool,

    /// Only those that met this rule, such as shop/user; none for those that met no rule
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Option<String>,

    /// Only those with this entry; may be given several times
    #[arg(long = "match", value_name = "KEY=VALUE")]
    pub(crate) matches: Vec<String>,

    /// End after as many
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) count: Option<u64>,

    /// Print each as a JSON object on a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is asked, and how it is shown.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    #[command(flatten)]
    pub(crate) sidecar: SidecarOptions,

    /// Only descriptors of this domain
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,

    /// Only those that met this rule, such as shop/user; none for those that met no rule
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Option<String>,

    /// What comes first: the hottest, or those with the most denied hits
    #[arg(long, value_name = "ORDER", default_value = "hits")]
    pub(crate) order: TopOrder,

    /// How many, 1 to 100
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub(crate) rows: u32,

    /// How often the view is refreshed
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = times::refresh)]
    pub(crate) interval: Duration,

    /// Print once and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Print one JSON document, as /v1/top does, and end
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopOrder {
    Hits,
    Denied,
}
