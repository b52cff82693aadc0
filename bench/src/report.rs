//! Figures as rows of a file that all suites share, and as tables on the screen.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// One figure, as in the results file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) suite: &'static str,
    /// The circumstances of the measurement.
    pub(crate) case: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    /// The name of the peer, if there is one.
    pub(crate) peer: Option<String>,
    /// The same figure of the peer.
    pub(crate) peer_value: Option<f64>,
    /// `value / peer_value`.
    pub(crate) ratio: Option<f64>,
}

impl Row {
    /// A figure without a peer.
    pub(crate) fn new(
        suite: &'static str,
        case: impl Into<String>,
        (metric, unit): (&'static str, &'static str),
        value: f64,
    ) -> Row {
        Row { suite, case: case.into(), metric, unit, value, ..Row::default() }
    }

    /// Adds the figure of a peer, if there is one.
    pub(crate) fn beside<'a>(self, peer: impl Into<Option<(&'a str, f64)>>) -> Row {
        let Some((peer, value)) = peer.into() else { return self };
        let ratio = Some(self.value / value);
        Row { peer: Some(peer.to_owned()), peer_value: Some(value), ratio, ..self }
    }
}

/// Replaces the rows of these suites in the results file. Rows of other suites stay.
///
/// # Errors
/// When the file cannot be written. An unreadable file is replaced.
pub(crate) fn merge(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let old = match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
            eprintln!("{} is replaced, since it is no list of results: {error}", path.display());
            Vec::new()
        }),
        Err(_) => Vec::new(),
    };
    let merged = merged(old, rows)?;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    std::fs::write(path, serde_json::to_string_pretty(&merged)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Old rows stay as they are, from whatever version.
fn merged(mut old: Vec<Value>, rows: &[Row]) -> anyhow::Result<Vec<Value>> {
    old.retain(|row| !rows.iter().any(|new| row["suite"] == new.suite));
    for row in rows {
        old.push(serde_json::to_value(row)?);
    }
    Ok(old)
}

/// Prints a titled table: names in the first column, figures in the others.
pub(crate) fn print_table(title: &str, header: &[&str], lines: &[Vec<String>]) {
    println!("{}", table(title, header, lines));
}

fn table(title: &str, header: &[&str], lines: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(lines).collect();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = format!("{title}\n\n");
    for line in lines {
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            text += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(suite: &'static str, case: &str) -> Row {
        Row::new(suite, case, ("decisions", "1/s"), 6.0)
    }

    fn cases(rows: &[Value]) -> Vec<(&str, &str)> {
        rows.iter()
            .map(|row| (row["suite"].as_str().unwrap(), row["case"].as_str().unwrap()))
            .collect()
    }

    #[test]
    fn a_row_has_every_field_and_the_ratio_to_its_peer() {
        let rows = merged(Vec::new(), &[row("store", "a").beside(("governor", 2.0))]).unwrap();
        let expected = json!([{
            "suite": "store", "case": "a", "metric": "decisions", "unit": "1/s",
            "value": 6.0, "peer": "governor", "peer_value": 2.0, "ratio": 3.0,
        }]);
        assert_eq!(Value::from(rows), expected);
    }

    #[test]
    fn a_row_without_peer_says_null() {
        let rows = merged(Vec::new(), &[row("store", "a")]).unwrap();
        assert_eq!(rows[0]["peer"], Value::Null);
        assert_eq!(rows[0]["ratio"], Value::Null);
        assert_eq!(rows[0].as_object().unwrap().len(), 8);
    }

    #[test]
    fn merging_replaces_the_suites_that_ran_and_keeps_the_others() {
        let old = merged(Vec::new(), &[row("envoy", "a"), row("store", "b"), row("store", "c")]);
        let rows = merged(old.unwrap(), &[row("store", "d")]).unwrap();
        assert_eq!(cases(&rows), [("envoy", "a"), ("store", "d")]);
        let rows = merged(rows, &[row("envoy", "e"), row("rls", "f")]).unwrap();
        assert_eq!(cases(&rows), [("store", "d"), ("envoy", "e"), ("rls", "f")]);
    }

    #[test]
    fn rows_of_other_versions_stay_as_they_are() {
        let foreign = json!({"suite": "core", "value": null, "note": "kept"});
        let rows = merged(vec![foreign.clone()], &[row("store", "a")]).unwrap();
        assert_eq!(rows[0], foreign);
    }

    #[test]
    fn files_are_made_merged_and_replaced_if_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench/results.json");
        let read =
            || -> Vec<Value> { serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap() };
        merge(&path, &[row("envoy", "a")]).unwrap();
        merge(&path, &[row("store", "b")]).unwrap();
        assert_eq!(cases(&read()), [("envoy", "a"), ("store", "b")]);
        std::fs::write(&path, "[{").unwrap();
        merge(&path, &[row("store", "c")]).unwrap();
        assert_eq!(cases(&read()), [("store", "c")]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines =
            [vec!["µs".to_owned(), "1".to_owned()], vec!["b".to_owned(), "1000".to_owned()]];
        let expected = "title\n\ncase     ×\nµs       1\nb     1000\n";
        assert_eq!(table("title", &["case", "×"], &lines), expected);
    }
}
