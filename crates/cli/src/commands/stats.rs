//! `tidegate stats`: what was counted, from the database of statistics, as a chart, JSON or CSV.

use super::UsageError;
use super::chart::ChartStyle;
use crate::arguments::StatsOptions;
use crate::output::Output;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_limits::{Statistic, suggestion};
use tidegate_statistics::database::{Database, Settings};
use tidegate_statistics::query::Query;
use tidegate_statistics::render;

pub(crate) fn run(options: &StatsOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let settings = options.database()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ask(options, settings, out))?;
    Ok(ExitCode::SUCCESS)
}

async fn ask(options: &StatsOptions, settings: Settings, out: &mut Output) -> anyhow::Result<()> {
    let calendar = settings.calendar.clone();
    let database = Database::open(settings).await.context("the database of statistics")?;
    let known = database.statistics().await.context("the database of statistics")?;
    let Some(name) = &options.name else {
        return list(&known, options.json, out);
    };
    let Some(statistic) = known.iter().rev().find(|statistic| statistic.name == *name) else {
        let names: Vec<&str> = known.iter().map(|statistic| statistic.name.as_str()).collect();
        bail!("nothing was counted for {name:?}{}", suggestion(name, &names));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now)?;
    let parameters = parameters(options)?;
    let pairs = parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let query =
        Query::parse(statistic, pairs, now).map_err(|error| UsageError(error.to_string()))?;
    let answer = database.answer(&query, now).await?;
    database.close().await;
    if options.json {
        out.json(&answer.json())?;
    } else if options.csv {
        out.write_all(render::csv(&answer, &calendar).as_bytes())?;
    } else {
        let columns = ChartStyle::of_terminal().width();
        out.write_all(render::chart(&answer, &calendar, columns).as_bytes())?;
    }
    Ok(())
}

fn list(known: &[Statistic], is_json: bool, out: &mut Output) -> anyhow::Result<()> {
    if is_json {
        let one = |statistic: &Statistic| {
            let Statistic { name, by, distinct, .. } = statistic;
            json!({ "name": name, "by": by, "distinct": distinct })
        };
        out.json(&json!({ "statistics": known.iter().map(one).collect::<Vec<Value>>() }))?;
        return Ok(());
    }
    if known.is_empty() {
        writeln!(out, "nothing was counted yet")?;
    }
    for Statistic { name, by, distinct, .. } in known {
        let distinct = distinct.as_ref().map_or(String::new(), |key| format!(", distinct {key}"));
        writeln!(out, "{name}  by {}{distinct}", by.join(", "))?;
    }
    Ok(())
}

/// The parameters of the question, as in its URL.
fn parameters(options: &StatsOptions) -> anyhow::Result<Vec<(String, String)>> {
    let mut parameters = Vec::new();
    for filter in &options.filters {
        let Some((key, value)) = filter.split_once('=') else {
            bail!(UsageError(format!("expected KEY=VALUE, found {filter:?}")));
        };
        parameters.push((format!("key.{key}"), value.to_owned()));
    }
    let flags = [
        ("last", &options.last),
        ("from", &options.from),
        ("to", &options.to),
        ("step", &options.step),
        ("by", &options.by),
        ("order", &options.order),
    ];
    for (name, value) in flags {
        parameters.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
    }
    parameters.extend(options.top.map(|top| ("top".to_owned(), top.to_string())));
    Ok(parameters)
}
