//! `tidegate tail`: asks a sidecar again and again for the decisions since the last time, and prints a line for each.

use super::top::answered;
use super::top::ask::get;
use super::top::table::{descriptor, rule, wait};
use crate::arguments::TailOptions;
use crate::output::Output;
use anyhow::Context;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The sidecar keeps decisions for longer than this.
const ASK_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn run(options: &TailOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let (token, target) = (options.sidecar.token()?, target(options));
    let (mut after, mut left) = (None, options.count.unwrap_or(u64::MAX));
    while left > 0 && !out.is_closed() {
        let target = match after {
            Some(after) => format!("{target}&after={after}"),
            None => target.clone(),
        };
        let body = answered(get(&options.sidecar, token.as_deref(), &target)?)?;
        let text = String::from_utf8(body).context("the sidecar's answer is no text")?;
        for (number, decision) in events(&text)? {
            after = Some(number);
            if left > 0 {
                left -= 1;
                let line = if options.json { decision.to_string() } else { line(&decision) };
                writeln!(out, "{line}")?;
            }
        }
        out.flush()?;
        if left > 0 {
            std::thread::sleep(ASK_EVERY);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The path and the query of the question.
fn target(options: &TailOptions) -> String {
    let mut target = String::from("/v1/decisions?");
    if options.denied {
        target.push_str("denied&");
    }
    let rule = options.rule.iter().map(|rule| ("rule", rule));
    for (name, value) in rule.chain(options.matches.iter().map(|value| ("match", value))) {
        let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
        target.push_str(&format!("{name}={value}&"));
    }
    target.pop();
    if target.ends_with("decisions") {
        target.push('?');
    }
    target
}

/// The numbers and the decisions of server-sent events.
fn events(text: &str) -> anyhow::Result<Vec<(u64, Value)>> {
    let mut events = Vec::new();
    for event in text.split("\n\n") {
        let Some((number, data)) =
            event.strip_prefix("id: ").and_then(|event| event.split_once('\n'))
        else {
            continue;
        };
        let data = data.strip_prefix("data: ").context("an event without data")?;
        let decision = serde_json::from_str(data).context("a decision is no JSON")?;
        events.push((number.parse().context("the number of an event")?, decision));
    }
    Ok(events)
}

fn line(decision: &Value) -> String {
    let text = |name: &str| {
        tidegate_statistics::render::plain(decision[name].as_str().unwrap_or("?")).replace('_', " ")
    };
    let mut line = format!(
        "{:16} {:8} {:24} {}",
        text("verdict"),
        text("decided_in"),
        rule(decision),
        descriptor(decision)
    );
    if let Some(hits) = decision["hits"].as_u64().filter(|hits| *hits != 1) {
        line.push_str(&format!(", hits {hits}"));
    }
    if let (Some(left), Some(capacity)) =
        (decision["remaining"].as_u64(), decision["capacity"].as_u64())
    {
        line.push_str(&format!(", left {left}/{capacity}"));
    }
    if let Some(ms) = decision["retry_ms"].as_u64() {
        line.push_str(&format!(", retry in {}", wait(ms)));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Cli, Command};
    use clap::Parser;
    use serde_json::json;

    fn check_target(arguments: &[&str], expected: &str) {
        let arguments = [&["tidegate", "tail"], arguments].concat();
        let Command::Tail(options) = Cli::parse_from(arguments).command else { panic!("no tail") };
        assert_eq!(target(&options), expected);
    }

    #[test]
    fn filters_are_in_the_question() {
        check_target(&[], "/v1/decisions?");
        check_target(&["--denied"], "/v1/decisions?denied");
        let arguments = ["--rule", "d/a", "--match", "a=b&c", "--match", "d=e"];
        check_target(&arguments, "/v1/decisions?rule=d%2Fa&match=a%3Db%26c&match=d%3De");
    }

    #[test]
    fn an_event_is_a_line_of_text_alone() {
        let decision = json!({
            "domain": "d", "entries": [{"key": "user", "value": "\u{1b}[2J\nid: 9\n\n"}], "cut": true,
            "met": "no_rule", "rule": null, "verdict": "denied_elsewhere", "hits": 3,
            "decided_in": "envoy", "remaining": 0, "capacity": 5, "retry_ms": 1500,
        });
        let text = format!("retry: 500\n\nid: 17\ndata: {decision}\n\n");
        let found = events(&text).unwrap();
        let [(17, found)] = &found[..] else { panic!("{found:?}") };
        let expected = "denied elsewhere envoy    (no rule)                \
            d user=\\u{1b}[2J\\u{a}id: 9\\u{a}\\u{a} (cut), hits 3, left 0/5, retry in 1.5s";
        assert_eq!(line(found), expected);
        assert!(events("id: 1\nfoo\n\n").is_err());
    }
}
