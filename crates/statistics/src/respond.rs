//! `GET /v1/statistics` and `GET /v1/statistics/{name}`: a path and a query string in, a status and JSON out.
//!
//! Knows no server: its caller has the endpoint, and says who may ask.

use crate::database::{AnswerError, Database, DatabaseError};
use crate::declared::Declared;
use crate::query::Query;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tidegate_limits::{Statistic, suggestion};
use tidegate_sql::SqlError;

/// More than a statistic has keys and parameters, several times.
const PARAMETERS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub status: u16,
    pub body: Value,
}

/// All statistics in force.
#[must_use]
pub fn list(declared: &Declared) -> Response {
    let statistic = |statistic: &Statistic| {
        let Statistic { name, domain, by, distinct } = statistic;
        json!({ "name": name, "domain": **domain, "by": by, "distinct": distinct })
    };
    let all: Vec<Value> = declared.all().map(statistic).collect();
    Response { status: 200, body: json!({ "statistics": all }) }
}

/// The answer to a question about a statistic; `name` and `query` as in the URL. Without a database the answer is that there is
/// none.
pub async fn respond(
    declared: &Declared,
    database: Option<&Database>,
    (name, query): (&str, &str),
    now: i64,
) -> Response {
    let name = percent_decode_str(name).decode_utf8_lossy();
    let Some(statistic) = declared.all().find(|statistic| statistic.name == name) else {
        return unknown(&name, declared);
    };
    let query = match question(statistic, query, now) {
        Ok(query) => query,
        Err(message) => return error(400, &message),
    };
    let Some(database) = database else {
        return error(503, "the database of statistics does not answer");
    };
    match database.answer(&query, now).await {
        Ok(answer) => Response { status: 200, body: answer.json() },
        Err(AnswerError::Query(wrong)) => error(400, &wrong.to_string()),
        Err(AnswerError::Database(slow @ DatabaseError::Sql(SqlError::Slow(_)))) => {
            error(504, &format!("the database of statistics: {slow}"))
        }
        // What the server says may name hosts and users.
        Err(AnswerError::Database(cause)) => {
            tracing::debug!(%cause, "a question about statistics failed");
            error(503, "the database of statistics does not answer")
        }
    }
}

fn unknown(name: &str, declared: &Declared) -> Response {
    let known: Vec<&str> = declared.all().map(|statistic| statistic.name.as_str()).collect();
    let name: String = name.chars().take(63).collect();
    let meant = suggestion(&name, &known);
    error(404, &format!("no statistic has the name {name:?}{meant}"))
}

fn question(statistic: &Statistic, query: &str, now: i64) -> Result<Query, String> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let pairs: Vec<_> = pairs.take(PARAMETERS_MAX + 1).collect();
    if pairs.len() > PARAMETERS_MAX {
        return Err(format!("more than {PARAMETERS_MAX} parameters"));
    }
    let pairs = pairs.iter().map(|(name, value)| (&**name, &**value));
    Query::parse(statistic, pairs, now).map_err(|error| error.to_string())
}

fn error(status: u16, message: &str) -> Response {
    Response { status, body: json!({ "error": message }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::{Aggregator, Bounds};
    use crate::backlog::Backlog;
    use crate::series::Counts;
    use crate::testing::{Databases, Kind, Server};
    use tidegate_limits::Rules;

    const NOW: i64 = 1_795_600_800;

    fn declared() -> Declared {
        let mut rules = Rules::default();
        rules.set_statistics(vec![Statistic {
            name: "calls".to_owned(),
            domain: "shop".into(),
            by: vec!["app".to_owned()],
            distinct: None,
        }]);
        Declared::of(&rules)
    }

    async fn check(database: Option<&Database>, name: &str, query: &str, status: u16, error: &str) {
        let response = respond(&declared(), database, (name, query), NOW).await;
        assert_eq!((response.status, response.body), (status, json!({ "error": error })));
    }

    #[tokio::test]
    async fn mistakes_are_answered_before_the_database_is_asked() {
        check(None, "cals", "", 404, "no statistic has the name \"cals\" (did you mean `calls`?)")
            .await;
        check(None, "a%0Ab", "", 404, "no statistic has the name \"a\\nb\"").await;
        let unknown = "`x y` is neither a parameter nor a key of this statistic (app)";
        check(None, "calls", "x+y=1", 400, unknown).await;
        check(None, "calls", &"a&".repeat(33), 400, "more than 32 parameters").await;
        check(None, "calls", "last=1d", 503, "the database of statistics does not answer").await;
    }

    #[test]
    fn all_statistics_are_listed() {
        let statistic = json!({"name": "calls", "domain": "shop", "by": ["app"], "distinct": null});
        let expected = Response { status: 200, body: json!({ "statistics": [statistic] }) };
        assert_eq!(list(&declared()), expected);
    }

    #[tokio::test]
    async fn from_a_request_to_an_answer() {
        let server = Server::start(Kind::Sqlite).await.unwrap();
        let database = server.database("answer").await;
        let (declared, aggregator) = (declared(), Aggregator::new(Bounds::default()));
        let app = [("app", "a b+c=&é")].into_iter();
        let denied = Counts { allowed: 0, denied: 1, hits: 3 };
        declared.record(&aggregator, "shop", &app, denied);
        let mut backlog = Backlog::new(1, 1 << 20);
        backlog.add(aggregator.take((NOW - 60).cast_unsigned()));
        let (id, points) = backlog.next().unwrap();
        database.write(id, &points, NOW).await.unwrap();
        let query = "app=a+b%2Bc%3D%26%C3%A9&last=1h";
        let response = respond(&declared, Some(&database), ("calls", query), NOW).await;
        assert_eq!(response.status, 200);
        let total = json!({"allowed": 0, "denied": 1, "hits": 3});
        assert_eq!(response.body["series"][0]["total"], total);
        let wide = format!("from={}&to={NOW}&step=1m", NOW - 40 * 86_400);
        let response = respond(&declared, Some(&database), ("calls", &wide), NOW).await;
        // A step that is wider than asked for, since minutes are kept for a day.
        assert_eq!(response.body["step"], "1d");
    }
}
