//! `tidegate top`: asks a sidecar who is limited now, and shows it, again and again in a terminal.

pub(in crate::commands) mod ask;
pub(super) mod table;

use crate::arguments::{TopOptions, TopOrder};
use crate::commands::chart::ChartStyle;
use crate::output::Output;
use anyhow::{Context, bail};
use ask::Reply;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// To the upper left corner, and nothing on the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn run(options: &TopOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let (token, target) = (options.sidecar.token()?, target(options));
    let ask = || document(ask::get(&options.sidecar, token.as_deref(), &target)?);
    if options.json {
        out.json(&ask()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.once || !std::io::stdout().is_terminal() {
        out.write_all(shown(options, &ask()?).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Ctrl-C ends this as it ends any program: nothing of the terminal is changed that would have to be restored.
    while !out.is_closed() {
        let view = match ask() {
            Ok(answer) => shown(options, &answer),
            // The sidecar may be about to start again.
            Err(error) => format!("{error:#}\n"),
        };
        write!(out, "{CLEAR}{view}")?;
        out.flush()?;
        std::thread::sleep(options.interval);
    }
    Ok(ExitCode::SUCCESS)
}

/// The path and the query of the question.
fn target(options: &TopOptions) -> String {
    let order = match options.order {
        TopOrder::Hits => "hits",
        TopOrder::Denied => "denied",
    };
    let mut target = format!("/v1/top?order={order}&n={}", options.rows);
    for (name, value) in [("domain", &options.domain), ("rule", &options.rule)] {
        if let Some(value) = value {
            let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
            target.push_str(&format!("&{name}={value}"));
        }
    }
    target
}

/// The answer, or what the sidecar says instead.
fn document(reply: Reply) -> anyhow::Result<Value> {
    let body = answered(reply)?;
    serde_json::from_slice(&body).context("the sidecar's answer is no JSON")
}

/// The body of an answer, or what the sidecar says instead.
pub(in crate::commands) fn answered(reply: Reply) -> anyhow::Result<Vec<u8>> {
    let Reply { status, body } = reply;
    if status == 200 {
        return Ok(body);
    }
    let said = match serde_json::from_slice::<Value>(&body) {
        Ok(document) => document["error"].as_str().map(str::to_owned),
        Err(_) => None,
    };
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
    let said: String = said.chars().take(300).collect();
    bail!("the sidecar answers {status}: {}", tidegate_statistics::render::plain(&said))
}

fn shown(options: &TopOptions, answer: &Value) -> String {
    let width = std::io::stdout().is_terminal().then(|| ChartStyle::of_terminal().width());
    let of = options.rule.as_deref().or(options.domain.as_deref());
    table::text(answer, of, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Cli, Command};
    use clap::Parser;

    #[test]
    fn names_are_encoded_in_the_question() {
        let arguments = ["tidegate", "top", "--domain", "a&b c", "--rule", "shop/user", "-n", "3"];
        let Command::Top(options) = Cli::parse_from(arguments).command else { panic!("no top") };
        let expected = "/v1/top?order=hits&n=3&domain=a%26b%20c&rule=shop%2Fuser";
        assert_eq!(target(&options), expected);
    }

    #[test]
    fn what_the_sidecar_says_instead_of_an_answer_is_the_error() {
        let check = |status, body: &str, expected: &str| {
            let reply = Reply { status, body: body.into() };
            assert_eq!(document(reply).unwrap_err().to_string(), expected);
        };
        check(400, r#"{"error": "`n` is wrong"}"#, "the sidecar answers 400: `n` is wrong");
        check(404, "no such\x1b[2J page\n", "the sidecar answers 404: no such\\u{1b}[2J page");
        check(200, "OK", "the sidecar's answer is no JSON");
    }
}
