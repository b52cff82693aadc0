//! `tidegate check`: every mistake of a limits file or directory, one a line.

use crate::cli::CheckOptions;
use crate::rules;
use std::io::Write;
use std::process::ExitCode;

pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    match rules::load(&options.path) {
        Ok(rules) => {
            let (limits, domains) = (rules.limits().len(), rules.domain_names());
            let (count, names) = (count(domains.len()), domains.join(", "));
            // A reader that has gone away does not change the verdict.
            let _ = writeln!(std::io::stdout(), "ok: {limits} limits in {count} ({names})");
            ExitCode::SUCCESS
        }
        Err(errors) => {
            eprintln!("{errors}");
            ExitCode::FAILURE
        }
    }
}

fn count(domains: usize) -> String {
    if domains == 1 { "1 domain".to_owned() } else { format!("{domains} domains") }
}
