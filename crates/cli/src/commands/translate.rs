//! `tidegate translate`: the configuration of Envoy's own rate limit filter as that of this one.
//!
//! `input` reads files, `find` looks for the filter, virtual hosts and routes in them, `options` and `hosts` translate
//! what was found, and `entries` asks the filter's own reader about each entry. The configuration goes to standard
//! output, each thing without an equivalent to standard error. Nothing is printed that the filter would refuse.

mod entries;
mod find;
mod hosts;
mod input;
mod options;
mod report;
#[cfg(test)]
mod tests;

use crate::arguments::TranslateOptions;
use crate::commands::EXIT_USAGE;
use crate::output::Output;
use find::{Found, NativeFilter};
use report::Report;
use serde_json::Value;
use std::process::ExitCode;
use tidegate::config::Config;

/// The most filters that a message lists.
const FILTERS_MAX: usize = 8;

pub(crate) fn run(options: &TranslateOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let files = input::read(&options.files)?;
    let (config, report) = match translate(options, &files) {
        Ok(translated) => translated,
        Err(message) => {
            eprintln!("tidegate: {message}");
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    for finding in report.findings() {
        eprintln!("{finding}");
    }
    let is_complete = report.is_complete();
    if !is_complete {
        eprintln!("{}", report.summary());
    }
    match config {
        Ok(config) if is_complete || !options.strict => out.json(&config)?,
        Ok(_) => eprintln!("tidegate: nothing is printed, because of --strict"),
        Err(message) => eprintln!("tidegate: nothing is printed: {message}"),
    }
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A configuration that the filter accepts, or why there is none.
type Translated = Result<Value, String>;

/// What the files mean for the filter. An error means that they do not say enough.
fn translate(
    options: &TranslateOptions,
    files: &[input::File],
) -> Result<(Translated, Report), String> {
    let found = Found::of(files);
    let mut report = Report::default();
    let filter = chosen(&found, options.filter.as_deref())?;
    if filter.is_none() && found.is_empty() {
        return Err("no rate limit filter, virtual host or route in the input".to_owned());
    }
    let (mut config, own) = options::translate(filter, options, &mut report)?;
    let name = filter.and_then(|filter| filter.name).unwrap_or(find::FILTER_NAME);
    hosts::translate(&found, name, own, &mut config, &mut report);
    let checked = match Config::from_envoy(config.to_string().as_bytes()) {
        Ok(_) => Ok(config),
        Err(error) => {
            report.fail();
            Err(error.to_string())
        }
    };
    Ok((checked, report))
}

/// The one filter, or the one of this name. Several listeners may have the same.
fn chosen<'f, 'a>(
    found: &'f Found<'a>,
    name: Option<&str>,
) -> Result<Option<&'f NativeFilter<'a>>, String> {
    let mut different: Vec<&NativeFilter<'_>> = Vec::new();
    for filter in &found.filters {
        let is_meant = name.is_none_or(|name| filter.name.unwrap_or(find::FILTER_NAME) == name);
        if is_meant && !different.iter().any(|other| other.is_same(filter)) {
            different.push(filter);
        }
        // More need not be compared for the message.
        if different.len() >= FILTERS_MAX {
            break;
        }
    }
    match (different.as_slice(), name) {
        ([], Some(name)) => Err(format!("no rate limit filter in the input has the name {name:?}")),
        ([], None) => Ok(None),
        ([one], _) => Ok(Some(one)),
        (several, _) => {
            let each = several.iter().map(|filter| {
                let name = filter.name.unwrap_or(find::FILTER_NAME);
                format!("\n  {}: {name}", filter.at.place())
            });
            let each: String = each.collect();
            Err(format!(
                "the input has several rate limit filters, and each needs a filter here; choose one with --filter \
                 NAME, or give the file of one:{each}"
            ))
        }
    }
}
