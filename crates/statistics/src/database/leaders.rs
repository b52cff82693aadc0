//! The largest series of each hour, day and week, so that the largest of a hundred thousand series over a year are found
//! without adding up all of them.
//!
//! Each part adds the counts of its own largest series. So a series that is among the largest of a time is a leader of it, and
//! its sum here is at most its true one: good enough to say which series to add up. What answers say is added up from points.

use super::dialect::add_counts;
use super::{Database, stored};
use crate::batch::Point;
use crate::query::Order;
use crate::retention::Width;
use crate::series::{Counts, Series};
use sqlx::{AnyConnection, Row};
use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_sql::{chunks, rows};

/// Leaders of a part, by each order.
const OF_PART: usize = 32;
/// Leaders of a time that are kept, by each order.
const KEPT: usize = 300;
/// Widths that have leaders, and for how many days before now they are asked for.
const WIDTHS: [(Width, i64); 3] = [(Width::Hour, 3), (Width::Day, 62), (Width::Week, i64::MAX)];
/// Orders that differ in their leaders. By what was allowed they are those by requests.
const ORDERS: [Order; 3] = [Order::Requests, Order::Denied, Order::Hits];

/// Statistic, width and start of a time, and a series.
type Leaders = BTreeMap<(i64, i64, i64, i64), Counts>;

/// The width whose leaders are those of a range that begins at `from`.
pub(super) fn width(from: i64, now: i64) -> Width {
    let is_near = |days: i64| from >= now.saturating_sub(days.saturating_mul(86_400));
    WIDTHS.into_iter().find(|(_, days)| is_near(*days)).map_or(Width::Week, |(width, _)| width)
}

impl Database {
    /// Adds the largest series of a part to the leaders. Series that are not present are the others, which need no rank.
    pub(super) async fn add_leaders(
        &self,
        connection: &mut AnyConnection,
        points: &[&Point],
        present: &HashSet<i64>,
    ) -> sqlx::Result<()> {
        let leaders: Vec<_> = self.leaders(points, present).into_iter().collect();
        for chunk in chunks(&leaders) {
            let sql = format!(
                "INSERT INTO tidegate_leaders (statistic, width, start, series, allowed, denied, hits) VALUES {} {}",
                rows(chunk.len(), 7),
                add_counts(self.dialect, "tidegate_leaders", "statistic, width, start, series")
            );
            let mut insert = sqlx::query(self.dialect.sql(&sql));
            for ((statistic, width, start, series), counts) in chunk {
                insert = insert.bind(*statistic).bind(*width).bind(*start).bind(*series);
                for count in [counts.allowed, counts.denied, counts.hits] {
                    insert = insert.bind(stored(count));
                }
            }
            insert.execute(&mut *connection).await?;
        }
        Ok(())
    }

    fn leaders(&self, points: &[&Point], present: &HashSet<i64>) -> Leaders {
        let mut sums: HashMap<(i64, i64, i64), HashMap<i64, Counts>> = HashMap::new();
        // A part has few different minutes.
        let mut starts: HashMap<u64, [(i64, i64); WIDTHS.len()]> = HashMap::new();
        for Point { statistic, minute, series, tally } in points.iter().copied() {
            let id = self.id(statistic, series);
            if *series == Series::Other || !present.contains(&id) {
                continue;
            }
            let starts = starts.entry(*minute).or_insert_with(|| {
                let at = i64::try_from(*minute).unwrap_or(0);
                let calendar = &self.settings.calendar;
                WIDTHS.map(|(width, _)| (width.seconds(), calendar.floor(width, at)))
            });
            for (width, start) in *starts {
                let sums = sums.entry((self.statistic(statistic), width, start)).or_default();
                sums.entry(id).or_default().add(tally.counts);
            }
        }
        let mut leaders = Leaders::new();
        for ((statistic, width, start), series) in sums {
            let mut series: Vec<(i64, Counts)> = series.into_iter().collect();
            for order in ORDERS {
                let largest = OF_PART.min(series.len());
                if largest < series.len() {
                    series.select_nth_unstable_by_key(largest, |(id, counts)| {
                        (std::cmp::Reverse(order.of(*counts)), *id)
                    });
                }
                let largest = series[..largest].iter().filter(|(_, counts)| order.of(*counts) > 0);
                leaders
                    .extend(largest.map(|(id, counts)| ((statistic, width, start, *id), *counts)));
            }
        }
        leaders
    }

    /// Removes the leaders of a statistic that nobody asks for any more, and of each time those that are far behind.
    pub(super) async fn trim_leaders(&self, statistic: &str, now: i64) -> sqlx::Result<()> {
        let statistic = self.statistic(statistic);
        for (width, days) in WIDTHS {
            let days = days.min(self.settings.retention.weeks.into());
            let oldest =
                self.settings.calendar.floor(width, now.saturating_sub((days + 1) * 86_400));
            let width = width.seconds();
            let sql =
                "DELETE FROM tidegate_leaders WHERE statistic = ? AND width = ? AND start < ?";
            let delete =
                sqlx::query(self.dialect.sql(sql)).bind(statistic).bind(width).bind(oldest);
            delete.execute(&self.pool).await?;
            let sql = format!(
                "SELECT start FROM tidegate_leaders WHERE statistic = ? AND width = ? \
                 GROUP BY start HAVING COUNT(*) > {}",
                ORDERS.len() * KEPT
            );
            let crowded = sqlx::query(self.dialect.sql(&sql)).bind(statistic).bind(width);
            for row in crowded.fetch_all(&self.pool).await? {
                self.trim_time((statistic, width, row.try_get(0)?)).await?;
            }
        }
        Ok(())
    }

    async fn trim_time(&self, (statistic, width, start): (i64, i64, i64)) -> sqlx::Result<()> {
        let time = "statistic = ? AND width = ? AND start = ?";
        let mut kept = HashSet::new();
        for order in ORDERS {
            let column = order.column("");
            let sql = format!(
                "SELECT series FROM tidegate_leaders WHERE {time} AND {column} > 0 \
                 ORDER BY {column} DESC, series LIMIT {KEPT}"
            );
            let select =
                sqlx::query(self.dialect.sql(&sql)).bind(statistic).bind(width).bind(start);
            for row in select.fetch_all(&self.pool).await? {
                kept.insert(row.try_get::<i64, _>(0)?);
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let mut kept: Vec<i64> = kept.into_iter().collect();
        kept.sort_unstable();
        let sql = format!(
            "DELETE FROM tidegate_leaders WHERE {time} AND series NOT IN {}",
            rows(1, kept.len())
        );
        let mut delete =
            sqlx::query(self.dialect.sql(&sql)).bind(statistic).bind(width).bind(start);
        for series in kept {
            delete = delete.bind(series);
        }
        delete.execute(&self.pool).await?;
        Ok(())
    }
}
