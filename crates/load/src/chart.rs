//! Draws latency by percentile. The percentiles are on an axis of nines, so that the slowest in ten
//! thousand requests have as much room as the slowest tenth. Both axes are logarithmic.

use crate::report::Report;
use crate::svg::{INK, Svg};
use hdrhistogram::Histogram;
use std::fmt::Write;

const SIZE: (i64, i64) = (720, 380);
/// The frame of the plot.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 704.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 326.0;
/// Points per nine.
const STEPS: u32 = 40;
const NINES_MAX: u32 = 6;

struct Series<'a> {
    name: &'static str,
    colour: &'static str,
    style: &'static str,
    latencies: &'a Histogram<u64>,
}

/// Draws a report.
pub(crate) fn latency(report: &Report) -> String {
    let dashed = " stroke-dasharray=\"5 3\"";
    let all = [
        ("served, from due", "#2f81f7", "", &report.served.from_due),
        ("served, from written", "#2f81f7", dashed, &report.served.from_written),
        ("shed, from due", "#d9822b", "", &report.shed.from_due),
        ("shed, from written", "#d9822b", dashed, &report.shed.from_written),
    ];
    let series: Vec<Series<'_>> = all
        .into_iter()
        .filter(|(_, _, _, latencies)| !latencies.is_empty())
        .map(|(name, colour, style, latencies)| Series { name, colour, style, latencies })
        .collect();
    let axes = Axes::of(&series);
    let mut svg = titled(report);
    axes.draw(&mut svg);
    for (number, series) in series.iter().enumerate() {
        draw(&mut svg, series, &axes, number);
    }
    svg.finish()
}

fn titled(report: &Report) -> Svg {
    let config = &report.config;
    let pace = match config.rate {
        Some(rate) => format!("{rate} requests a second"),
        None => "closed loop".to_owned(),
    };
    let title = format!("Latency of {} at {pace}", config.target);
    let served = &report.latency.served.from_due;
    let description = format!(
        "{} answers with a decision: p50 {} ms, p99 {} ms, p99.99 {} ms, longest {} ms.",
        served.count, served.p50, served.p99, served.p99_99, served.max
    );
    let mut svg = Svg::new(SIZE, &title, &description);
    svg.text((LEFT as i64, 20), " font-size=\"13\" font-weight=\"600\"", &title);
    svg
}

/// The ranges of the axes.
struct Axes {
    nines: u32,
    /// Powers of ten of nanoseconds.
    low: f64,
    high: f64,
}

impl Axes {
    fn of(series: &[Series<'_>]) -> Axes {
        let count = series.iter().map(|series| series.latencies.len()).max().unwrap_or(1);
        // Up to the percentile with ten requests above it.
        let nines = (count / 10).max(10).ilog10().clamp(1, NINES_MAX);
        let min = series.iter().map(|series| series.latencies.min().max(100)).min();
        let max = series.iter().map(|series| series.latencies.max()).max();
        let low = (min.unwrap_or(100_000) as f64).log10().floor();
        let high = (max.unwrap_or(1_000_000) as f64).log10().ceil().max(low + 1.0);
        Axes { nines, low, high }
    }

    /// The position of a percentile in nines: 0 is 0 %, 1 is 90 %, 2 is 99 %.
    fn x(&self, nines: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * nines / f64::from(self.nines)
    }

    fn y(&self, nanos: f64) -> f64 {
        let share = (nanos.max(1.0).log10() - self.low) / (self.high - self.low);
        BOTTOM - (BOTTOM - TOP) * share.clamp(0.0, 1.0)
    }

    fn draw(&self, svg: &mut Svg) {
        for nines in 0..=self.nines {
            let x = self.x(f64::from(nines));
            let percent = match nines {
                0 => "0".to_owned(),
                1 => "90".to_owned(),
                2 => "99".to_owned(),
                more => format!("99.{}", "9".repeat(more as usize - 2)),
            };
            svg.line(format_args!(
                "<path d=\"M{x:.1} {TOP}V{BOTTOM}\" stroke=\"{INK}\" opacity=\".3\"/>\n\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{percent} %</text>",
                BOTTOM + 16.0
            ));
        }
        let mut power = self.low as i32;
        while f64::from(power) <= self.high {
            let y = self.y(10_f64.powi(power));
            svg.line(format_args!(
                "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"{INK}\" opacity=\".3\"/>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                10_f64.powi(power) / 1e6
            ));
            power += 1;
        }
        let middle = (LEFT + RIGHT) / 2.0;
        svg.line(format_args!(
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">percentile of requests</text>\n\
             <text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">latency, ms</text>",
            BOTTOM + 38.0,
            (TOP + BOTTOM) / 2.0
        ));
    }
}

fn draw(svg: &mut Svg, series: &Series<'_>, axes: &Axes, number: usize) {
    let Series { name, colour, style, latencies } = series;
    let mut path = String::new();
    for step in 0..=axes.nines * STEPS {
        let nines = f64::from(step) / f64::from(STEPS);
        let nanos = latencies.value_at_quantile(1.0 - 10_f64.powf(-nines));
        let command = if step == 0 { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = write!(path, "{command}{:.1} {:.1}", axes.x(nines), axes.y(nanos as f64));
    }
    let x = LEFT + 160.0 * number as f64;
    svg.line(format_args!(
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{style}>\
         <title>{name}</title></path>\n\
         <path d=\"M{x} 40h22\" stroke=\"{colour}\" stroke-width=\"1.8\"{style}/>\n\
         <text x=\"{}\" y=\"44\">{name}</text>",
        x + 28.0
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn a_series_that_is_there_is_drawn_and_named_and_one_that_is_not_is_not() {
        let mut report = sample();
        let svg = latency(&report);
        for name in
            ["served, from due", "served, from written", "shed, from due", "shed, from written"]
        {
            assert_eq!(svg.matches(&format!("<title>{name}</title>")).count(), 1, "{name}");
        }
        for label in ["0 %", "90 %", "latency, ms", "percentile of requests", ">1<", ">100<"] {
            assert!(svg.contains(label), "{label} in\n{svg}");
        }
        report.shed.from_due.reset();
        report.shed.from_written.reset();
        assert!(!latency(&report).contains("shed"));
    }

    #[test]
    fn lines_rise_from_left_to_right_inside_the_frame() {
        let svg = latency(&sample());
        let path = svg.lines().find(|line| line.contains("served, from due</title>")).unwrap();
        let path = path.split('"').nth(1).unwrap();
        let points: Vec<(f64, f64)> = path
            .split(['M', 'L'])
            .skip(1)
            .map(|point| point.split_once(' ').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert!(points.len() > 40);
        for pair in points.windows(2) {
            assert!(pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1, "{pair:?}");
        }
        assert!(
            points.iter().all(|&(x, y)| (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y))
        );
    }

    #[test]
    fn a_load_without_an_answer_and_a_target_with_marks_still_make_a_drawing() {
        let mut report = sample();
        for latencies in [&mut report.served, &mut report.shed] {
            latencies.from_due.reset();
            latencies.from_written.reset();
        }
        report.config.target = "unix:/a<b>&\u{7}.sock".to_owned();
        let svg = latency(&report);
        assert!(svg.contains("unix:/a&lt;b&gt;&amp;.sock"), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
