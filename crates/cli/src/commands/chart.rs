//! Text charts: bars, and a map with darker cells for larger values.
//!
//! Uses block characters where the terminal shows them, else plain ASCII. Pure except for
//! [`ChartStyle::of_terminal`].

use rustix::termios::tcgetwinsize;
use std::env;
use std::io::{self, Write};
use tidegate_limits::describe::grouped;

const WIDTH_DEFAULT: usize = 80;
/// Nothing fits into less; longer lines are hard to read.
const WIDTH_MIN: usize = 40;
const WIDTH_MAX: usize = 160;
/// Longer charts are no overview.
const BARS_MAX: usize = 12;
const MAP_ROWS_MAX: u64 = 4;
const INDENT: usize = 4;

/// The characters of charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glyphs {
    pub(crate) times: char,
    bar: char,
    /// Zero, and up to each quarter of the maximum.
    levels: [char; 5],
}

const BLOCKS: Glyphs =
    Glyphs { times: '×', bar: '█', levels: [' ', '░', '▒', '▓', '█'] };
const ASCII: Glyphs = Glyphs { times: 'x', bar: '#', levels: [' ', '.', ':', '*', '#'] };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChartStyle {
    pub(crate) glyphs: Glyphs,
    width: usize,
}

impl ChartStyle {
    /// The columns that there are.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// As wide as the terminal, else as COLUMNS, else 80.
    pub(crate) fn of_terminal() -> ChartStyle {
        let terminal = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
        let columns = || env::var("COLUMNS").ok()?.trim().parse().ok();
        let width = terminal.filter(|width| *width > 0).or_else(columns).unwrap_or(WIDTH_DEFAULT);
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .filter_map(|name| env::var(name).ok())
            .find(|value| !value.is_empty());
        ChartStyle::new(width, env::var("TERM").ok().as_deref(), locale.as_deref())
    }

    fn new(width: usize, term: Option<&str>, locale: Option<&str>) -> ChartStyle {
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        let is_unicode = locale.contains("utf-8") || locale.contains("utf8");
        let glyphs = if is_unicode && term != Some("dumb") { BLOCKS } else { ASCII };
        ChartStyle { glyphs, width: width.clamp(WIDTH_MIN, WIDTH_MAX) }
    }

    /// A horizontal bar for each index of `counts` from the first to the last that is not 0. Many indexes share
    /// bars.
    pub(crate) fn bars(&self, out: &mut impl Write, counts: &[u64]) -> io::Result<()> {
        let Some(first) = counts.iter().position(|count| *count > 0) else { return Ok(()) };
        let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
        let step = (last - first + 1).div_ceil(BARS_MAX);
        let bars: Vec<(usize, usize, u64)> = (first..=last)
            .step_by(step)
            .map(|from| {
                let to = (from + step - 1).min(last);
                (from, to, counts[from..=to].iter().sum())
            })
            .collect();
        let most = bars.iter().map(|(.., count)| *count).max().unwrap_or(0).max(1);
        let label = |from, to| if from == to { format!("{from}") } else { format!("{from}-{to}") };
        let label_width = bars.iter().map(|(from, to, _)| label(*from, *to).len()).max();
        let label_width = label_width.unwrap_or(0);
        let room = self.width - INDENT - label_width - 2 - 1 - grouped(most).len();
        for (from, to, count) in bars {
            // At least one character, so that no count looks like 0.
            let len = (u128::from(count) * room as u128).div_ceil(u128::from(most)) as usize;
            let (label, bar) = (label(from, to), String::from_iter(vec![self.glyphs.bar; len]));
            let (gap, count) = (if len > 0 { " " } else { "" }, grouped(count));
            writeln!(out, "{:INDENT$}{label:>label_width$}  {bar}{gap}{count}", "")?;
        }
        Ok(())
    }

    /// The number of cells of a map of `things`: full rows, or one partial row.
    pub(crate) fn map_cells(&self, things: u64) -> u64 {
        let row = (self.width - 2 * INDENT) as u64;
        if things <= row { things } else { (things / row).min(MAP_ROWS_MAX) * row }
    }

    /// A map with a cell for each value, and a legend.
    pub(crate) fn map(&self, out: &mut impl Write, values: &[u64]) -> io::Result<()> {
        let most = values.iter().copied().max().unwrap_or(0).max(1);
        // 0 stays 0; the rest is rounded up to quarters.
        let level = |value: u64| (u128::from(value) * 4).div_ceil(u128::from(most)) as usize;
        for row in values.chunks(self.width - 2 * INDENT) {
            let cells: String =
                row.iter().map(|value| self.glyphs.levels[level(*value).min(4)]).collect();
            writeln!(out, "{:1$}|{cells}|", "", INDENT - 1)?;
        }
        let [_, quarter, half, most, all] = self.glyphs.levels;
        let legend =
            format!("{quarter} to 25% of the busiest, {half} to 50%, {most} to 75%, {all} above");
        writeln!(out, "{:INDENT$}blank: none, {legend}", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(draw: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        draw(&mut out).expect("memory takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn blocks_are_for_terminals_that_show_them() {
        let glyphs = |term, locale| ChartStyle::new(80, term, locale).glyphs;
        assert_eq!(glyphs(Some("xterm"), Some("en_US.UTF-8")), BLOCKS);
        assert_eq!(glyphs(None, Some("C.utf8")), BLOCKS);
        assert_eq!(glyphs(Some("dumb"), Some("C.UTF-8")), ASCII);
        assert_eq!(glyphs(Some("xterm"), Some("C")), ASCII);
        assert_eq!(glyphs(Some("xterm"), None), ASCII);
    }

    #[test]
    fn bars_are_as_long_as_they_fit() {
        let charts = ChartStyle::new(0, Some("dumb"), None);
        let bars = drawn(|out| charts.bars(out, &[0, 0, 1, 0, 1_000, 500]));
        let expected = [
            "    2  # 1".to_owned(),
            "    3  0".to_owned(),
            format!("    4  {} 1,000", "#".repeat(27)),
            format!("    5  {} 500", "#".repeat(14)),
        ];
        assert_eq!(bars.lines().collect::<Vec<_>>(), expected);
        assert!(bars.lines().all(|line| line.chars().count() <= WIDTH_MIN), "{bars}");
        assert_eq!(drawn(|out| charts.bars(out, &[0; 5])), "");
        let many = drawn(|out| charts.bars(out, &[1; 36]));
        assert_eq!(many.lines().count(), 12);
        assert!(many.starts_with("      0-2  #"), "{many}");
        assert_eq!(drawn(|out| charts.bars(out, &[u64::MAX])).lines().count(), 1);
    }

    #[test]
    fn a_map_has_a_shade_for_each_quarter() {
        let charts = ChartStyle::new(40, None, Some("C.UTF-8"));
        let map = drawn(|out| charts.map(out, &[0, 1, 25, 26, 50, 75, 76, 100]));
        assert_eq!(map.lines().next(), Some("   | ░░▒▒▓██|"));
        let map = drawn(|out| charts.map(out, &[u64::MAX; 40]));
        assert_eq!(map.lines().count(), 3);
        assert_eq!(charts.map_cells(5), 5);
        assert_eq!(charts.map_cells(33), 32);
        assert_eq!(charts.map_cells(70), 64);
        assert_eq!(charts.map_cells(1_000_000), 128);
    }
}
