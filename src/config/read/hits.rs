//! The cost of an entry of `rate_limits`: `hits_addend` and `apply_on_stream_done`.

use super::checks::{header_name, in_range};
use super::format;
use crate::config::format::{Command, Moment, Show};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{HITS_MAX, HitsAddend, Source};
use crate::config::{ConfigError, LateCharge, LateCost};

/// The cost of an entry.
pub(super) enum Hits {
    /// Taken when the request arrives.
    OfRequest(HitsAddend),
    /// Settled later, or refunded.
    Late(LateCharge),
}

const SOURCES: [&str; 4] = ["number", "format", "header", "response_header"];

pub(super) fn hits(entry: &Node<'_>, interner: &mut Interner) -> Result<Hits, ConfigError> {
    let at_end = entry.flag("apply_on_stream_done", false)?;
    let node = entry.at("hits_addend");
    if node.is_absent() {
        return Ok(match at_end {
            true => Hits::Late(LateCharge::DebitAtEnd(LateCost::Number(1))),
            false => Hits::OfRequest(HitsAddend::Number(1)),
        });
    }
    let fields =
        ["number", "format", "header", "response_header", "is_negative_hits", "estimate", "actual"];
    let expected = "an object with `number`, `format`, `header` or `response_header`";
    node.object(expected, &fields, &[])?;
    let refunds = node.flag("is_negative_hits", false)?;
    if let Some(estimate) = node.field("estimate") {
        return estimated(&node, &estimate, at_end, refunds, interner);
    }
    if let Some(actual) = node.field("actual") {
        return Err(actual.error("needs `estimate` beside it"));
    }
    let has_source = SOURCES.iter().any(|name| node.field(name).is_some());
    Ok(match (at_end, refunds) {
        (false, false) => Hits::OfRequest(match cost(&node, Moment::Request, interner)? {
            LateCost::Number(number) => HitsAddend::Number(number),
            LateCost::Value(command) => match *command {
                Command { fact, or: None, show: Show::Bytes, length_max: None } => {
                    HitsAddend::Header(fact)
                }
                command => HitsAddend::Command(Box::new(command)),
            },
        }),
        (false, true) if !has_source => Hits::Late(LateCharge::RefundAtStart(LateCost::Number(1))),
        (true, true) if !has_source => Hits::Late(LateCharge::RefundAtEnd(LateCost::Number(1))),
        (false, true) => {
            Hits::Late(LateCharge::RefundAtStart(cost(&node, Moment::Request, interner)?))
        }
        (true, false) => Hits::Late(LateCharge::DebitAtEnd(cost(&node, Moment::End, interner)?)),
        (true, true) => Hits::Late(LateCharge::RefundAtEnd(cost(&node, Moment::End, interner)?)),
    })
}

/// `estimate` and `actual`.
fn estimated(
    node: &Node<'_>,
    estimate: &Node<'_>,
    at_end: bool,
    refunds: bool,
    interner: &mut Interner,
) -> Result<Hits, ConfigError> {
    if at_end {
        let message = "takes hits when the request arrives, which `apply_on_stream_done` forbids; \
                       leave out one of them";
        return Err(estimate.error(message));
    }
    if refunds {
        return Err(estimate.error("is taken and cannot be refunded; leave out `is_negative_hits`"));
    }
    if let Some(name) = SOURCES.iter().find(|name| node.field(name).is_some()) {
        return Err(node.at(name).error("belongs into `actual`, since there is an `estimate`"));
    }
    let actual = node.required("actual")?;
    actual.object(
        "an object with `number`, `format`, `header` or `response_header`",
        &SOURCES,
        &[],
    )?;
    Ok(Hits::Late(LateCharge::Estimate {
        estimate: in_range(estimate, 1, HITS_MAX)?.into(),
        actual: cost(&actual, Moment::End, interner)?,
    }))
}

/// The one source of a cost.
fn cost(node: &Node<'_>, moment: Moment, interner: &mut Interner) -> Result<LateCost, ConfigError> {
    let mut given = SOURCES.iter().filter_map(|name| Some((*name, node.field(name)?)));
    let (Some((name, field)), None) = (given.next(), given.next()) else {
        let message = "expected exactly one of `number`, `format`, `header`, `response_header`";
        return Err(node.error(message));
    };
    let of_header = |fact| Command { fact, or: None, show: Show::Bytes, length_max: None };
    let command = match name {
        "number" => return Ok(LateCost::Number(in_range(&field, 0, HITS_MAX)?.into())),
        "format" => format::command(&field, moment, interner)?,
        "header" => of_header(interner.header(&header_name(&field)?)),
        _ if moment == Moment::Request => {
            let message = "has no value when a request arrives; set `apply_on_stream_done`, or use \
                           it as `actual` beside an `estimate`";
            return Err(field.error(message));
        }
        _ => of_header(interner.fact(Source::ResponseHeader(header_name(&field)?))),
    };
    Ok(LateCost::Value(Box::new(command)))
}
