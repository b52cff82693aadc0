//! Answers as JSON: what `GET /v1/statistics/{name}` sends.

use super::{Answer, AnswerPoint, AnswerSeries};
use crate::series::Counts;
use serde_json::{Map, Value, json};

impl Answer {
    /// Times are seconds since 1970. A series of all that had no room has `other` instead of values.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "statistic": self.statistic,
            "from": self.from,
            "to": self.to,
            "step": self.step.name(),
            "by": self.by,
            "series": self.series.iter().map(|series| self.series_json(series)).collect::<Vec<_>>(),
            "more": self.has_more,
        })
    }

    /// Present if it was asked for, and null if it could not be counted.
    fn distinct(&self, distinct: Option<u64>) -> Option<Option<u64>> {
        self.counts_distinct.then_some(distinct)
    }

    fn series_json(&self, series: &AnswerSeries) -> Value {
        let mut object = Map::new();
        match &series.values {
            Some(values) => {
                let pairs = self.by.iter().cloned().zip(values.iter().map(|value| json!(value)));
                object.insert("values".to_owned(), Value::Object(pairs.collect()));
            }
            None => {
                object.insert("other".to_owned(), Value::Bool(true));
            }
        }
        object
            .insert("total".to_owned(), counts_json(series.total, self.distinct(series.distinct)));
        let point = |point: &AnswerPoint| {
            let mut counts = counts_json(point.counts, self.distinct(point.distinct));
            if let Value::Object(counts) = &mut counts {
                counts.insert("start".to_owned(), json!(point.start));
            }
            counts
        };
        object.insert("points".to_owned(), series.points.iter().map(point).collect());
        Value::Object(object)
    }
}

fn counts_json(counts: Counts, distinct: Option<Option<u64>>) -> Value {
    let Counts { allowed, denied, hits } = counts;
    let mut object = json!({ "allowed": allowed, "denied": denied, "hits": hits });
    if let (Value::Object(object), Some(distinct)) = (&mut object, distinct) {
        object.insert("distinct".to_owned(), json!(distinct));
    }
    object
}
