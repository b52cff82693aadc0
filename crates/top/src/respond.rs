//! `GET /v1/top`: a query string and a summary in, a status and JSON out. Knows no server.

use crate::DECAY_SECONDS;
use crate::summary::{GroupSummary, MetKind, Order, Rates, Row, Summary};
use serde_json::{Value, json};

/// The value of `rule` for descriptors that met none. Paths of rules have a slash.
pub const NO_RULE: &str = "none";
const ROWS: usize = 20;
pub const ROWS_MAX: usize = 100;
const PARAMETERS_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub status: u16,
    pub body: Value,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    domain: Option<String>,
    rule: Option<String>,
    order: Order,
    rows: usize,
}

impl Question {
    /// Reads the query of a URL.
    ///
    /// # Errors
    /// A message, for a parameter that does not exist or has a wrong value.
    pub fn parse(query: &str) -> Result<Question, String> {
        let mut question = Question { domain: None, rule: None, order: Order::Hits, rows: ROWS };
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "domain" => question.domain = Some(value),
                "rule" => question.rule = Some(value),
                "order" => {
                    question.order = match value.as_str() {
                        "hits" => Order::Hits,
                        "denied" => Order::Denied,
                        _ => return Err("`order` must be `hits` or `denied`".to_owned()),
                    };
                }
                "n" => {
                    let rows = value.parse().ok().filter(|rows| (1..=ROWS_MAX).contains(rows));
                    question.rows =
                        rows.ok_or_else(|| format!("`n` must be a number from 1 to {ROWS_MAX}"))?;
                }
                _ => {
                    let name: String = name.chars().take(63).collect();
                    return Err(format!("{name:?} is no parameter: domain, rule, order, n"));
                }
            }
        }
        Ok(question)
    }

    fn takes_group(&self, group: &GroupSummary) -> bool {
        match self.rule.as_deref() {
            None => true,
            Some(NO_RULE) => matches!(group.met, MetKind::NoRule | MetKind::UnknownDomain),
            Some(rule) => group.rule.as_deref() == Some(rule),
        }
    }

    fn takes_row(&self, row: &Row) -> bool {
        self.domain.as_ref().is_none_or(|domain| row.domain == *domain)
    }
}

/// The answer to a question.
#[must_use]
pub fn respond(question: &Question, summary: &Summary) -> Response {
    let order = question.order;
    let mut rows: Vec<(&GroupSummary, &Row)> = Vec::new();
    for group in summary.groups.iter().filter(|group| question.takes_group(group)) {
        let wanted = group.rows(order).iter().filter(|row| question.takes_row(row));
        rows.extend(wanted.map(|row| (group, row)));
    }
    // Also by name, so that equal rates do not change places.
    rows.sort_by(|(_, a), (_, b)| {
        b.rate(order).total_cmp(&a.rate(order)).then_with(|| a.entries.cmp(&b.entries))
    });
    let more = rows.len().saturating_sub(question.rows);
    let rows: Vec<Value> =
        rows.iter().take(question.rows).map(|(group, row)| of(group, row)).collect();
    let order = match order {
        Order::Hits => "hits",
        Order::Denied => "denied",
    };
    let body = json!({
        "order": order,
        "decay_seconds": DECAY_SECONDS,
        "descriptors": rows,
        "more": more,
    });
    Response { status: 200, body }
}

/// The answer to a question that has a mistake.
#[must_use]
pub fn refused(message: &str) -> Response {
    Response { status: 400, body: json!({ "error": message }) }
}

fn of(group: &GroupSummary, row: &Row) -> Value {
    let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
    let Rates { allowed, denied, elsewhere, in_envoy } = row.rates;
    let share = if row.rates.hits() > 0.0 { in_envoy / row.rates.hits() } else { 0.0 };
    json!({
        "domain": row.domain,
        "entries": row.entries.iter().map(entry).collect::<Vec<Value>>(),
        "cut": row.is_cut,
        "met": group.met,
        "rule": group.rule,
        "rate": {
            "allowed": rounded(allowed),
            "denied": rounded(denied),
            "denied_elsewhere": rounded(elsewhere),
            "error": rounded(row.error),
        },
        "hits": { "allowed": row.allowed, "denied": row.denied },
        "in_envoy": rounded(share),
        "retry_ms": row.retry_ms,
        "remaining": row.left.map(|(remaining, _)| remaining),
        "capacity": row.left.map(|(_, capacity)| capacity),
    })
}

/// To thousandths.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

/// The parameters of a query, decoded as forms write them.
pub(crate) fn parameters(query: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = form_urlencoded::parse(query.as_bytes()).into_owned();
    let pairs: Vec<_> = pairs.take(PARAMETERS_MAX + 1).collect();
    if pairs.len() > PARAMETERS_MAX {
        return Err(format!("more than {PARAMETERS_MAX} parameters"));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, message: &str) {
        assert_eq!(Question::parse(query), Err(message.to_owned()), "{query}");
    }

    #[test]
    fn a_question_with_a_mistake_is_refused_with_the_cause() {
        check("n=0", "`n` must be a number from 1 to 100");
        check("n=101", "`n` must be a number from 1 to 100");
        check("order=rate", "`order` must be `hits` or `denied`");
        check("a%0Ab=1", "\"a\\nb\" is no parameter: domain, rule, order, n");
        check(&"n=1&".repeat(17), "more than 16 parameters");
        let question = Question::parse("domain=a+b&rule=a%2Fb&order=denied&n=3").unwrap();
        let (domain, rule) = (Some("a b".to_owned()), Some("a/b".to_owned()));
        assert_eq!(question, Question { domain, rule, order: Order::Denied, rows: 3 });
    }

    fn row(value: &str, allowed: f64, denied: f64) -> Row {
        Row {
            domain: "shop".to_owned(),
            entries: vec![("user".to_owned(), value.to_owned())],
            is_cut: false,
            rates: Rates { allowed, denied, elsewhere: 0.0, in_envoy: denied },
            error: 0.0,
            allowed: 1,
            denied: 2,
            retry_ms: Some(500),
            left: Some((0, 10)),
        }
    }

    fn group(met: MetKind, rule: Option<&str>, rows: &[Row]) -> GroupSummary {
        GroupSummary {
            met,
            domain: "shop".to_owned(),
            rule: rule.map(str::to_owned),
            rates: Rates::default(),
            hottest: rows.to_vec(),
            hottest_floor: 0.0,
            most_denied: rows.to_vec(),
            most_denied_floor: 0.0,
        }
    }

    #[test]
    fn descriptors_come_from_all_groups_or_from_one() {
        let limited = [row("a", 3.0, 1.0), row("b", 1.0, 2.0), row("c", 1.0, 0.0)];
        let groups = vec![
            group(MetKind::Rule, Some("shop/user"), &limited),
            group(MetKind::NoRule, None, &[row("d", 2.0, 0.0)]),
        ];
        let summary = Summary { groups };
        let values = |query: &str| -> Vec<String> {
            let body = respond(&Question::parse(query).unwrap(), &summary).body;
            let rows = body["descriptors"].as_array().unwrap().iter();
            rows.map(|row| row["entries"][0]["value"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(values(""), ["a", "b", "d", "c"]);
        assert_eq!(values("order=denied&n=2"), ["b", "a"]);
        assert_eq!(values("rule=shop/user"), ["a", "b", "c"]);
        assert_eq!(values("rule=none"), ["d"]);
        assert!(values("rule=shop/other").is_empty() && values("domain=other").is_empty());
        let body = respond(&Question::parse("n=1").unwrap(), &summary).body;
        let expected = json!({
            "order": "hits",
            "decay_seconds": 10.0,
            "more": 3,
            "descriptors": [{
                "domain": "shop", "entries": [{"key": "user", "value": "a"}], "cut": false,
                "met": "rule", "rule": "shop/user",
                "rate": {"allowed": 3.0, "denied": 1.0, "denied_elsewhere": 0.0, "error": 0.0},
                "hits": {"allowed": 1, "denied": 2}, "in_envoy": 0.25,
                "retry_ms": 500, "remaining": 0, "capacity": 10,
            }],
        });
        assert_eq!(body, expected);
    }
}
