//! Limits files: loaded to a compiled tree, checked, compared and described in words.
//!
//! Owns the syntaxes (`yaml`, `frs_map`), the tree that they compile to (`compiled`), and what can be said
//! of it without deciding anything: mistakes with their positions, what a change means (`diff`), where a
//! descriptor leads (`lookup`). Refuses to decide, to count and to watch files.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod compiled;
pub mod describe;
pub mod diff;
pub mod duration;
mod files;
mod frs_map;
mod load;
mod loader;
pub mod lookup;
mod report;
mod text;
pub mod usage_based;
mod yaml;
mod zone;

pub use compiled::{
    Below, Cidr, CidrError, DomainRules, Found, Limit, Match, Matcher, MatcherError, Rule,
    RuleKind, RuleNode, Rules, Step, Steps,
};
pub use files::{Pipes, Source, SourceFile, each_file, limits_files};
pub use load::{load, load_source};
pub use loader::{Defaults, Loaded, SameDomain};
pub use report::{Position, RuleError, RuleErrors};
pub use text::escaped;
pub use yaml::matching::segment;
pub use zone::daily_reset;

#[cfg(test)]
mod tests;
