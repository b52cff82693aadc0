//! Mistakes in the options of shared counters that depend on their sources.

use crate::arguments::ServeOptions;
use clap::ArgMatches;
use clap::parser::ValueSource;

/// What options of shared counters say together.
pub(super) fn check(options: &ServeOptions, serve: &ArgMatches) -> Result<(), String> {
    let is_from = |id: &str, source| serve.value_source(id) == Some(source);
    let ids = || serve.ids().map(clap::Id::as_str);
    let is_shown = |id: &&str| id.ends_with("password") && is_from(id, ValueSource::CommandLine);
    if let Some(id) = ids().find(is_shown) {
        let flag = id.replace('_', "-");
        return Err(format!(
            "--{flag}: every user of this machine sees a command line; use --{flag}-file"
        ));
    }
    let is_given =
        |id: &str| is_from(id, ValueSource::CommandLine) || is_from(id, ValueSource::EnvVariable);
    options.authority.check(ids(), is_given)
}

#[cfg(test)]
mod tests;
