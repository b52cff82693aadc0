//! All algorithms in one chart: the total that each has admitted of the same traffic.

use super::algorithms::Algorithm;
use super::axes::{WIDTH, level, minutes, steps, x};
use super::traffic::{Admission, FROM_SECS, LIMIT};
use tidegate_load::svg::Svg;

const HEIGHT: i64 = 372;
const TOP: i64 = 52;
/// The bottom, and the height per request, in hundredths of a pixel.
const BOTTOM: i64 = 34_200;
const HIT: i64 = 120;
/// The interval between points, and the end of the lines, which leaves room for the names.
const MILLIS: usize = 1_000;
const END_SECS: i64 = 82;
/// The least distance between names.
const NAME_HEIGHT: i64 = 15;

pub(super) fn draw<'a>(
    all: impl Iterator<Item = (&'a Algorithm, &'a Admission)> + Clone,
) -> String {
    let title = format!("Admitted so far, limit {LIMIT} per minute");
    let about = "Around the boundary the windows that end there admit two limits at once; the \
                 sliding ones admit one. In the long run all admit the same rate.";
    let mut svg = Svg::new((WIDTH, HEIGHT), &title, about);
    svg.text((44, 20), " font-size=\"15\" font-weight=\"600\"", "admitted so far");
    svg.text((44, 36), "", &format!("limit {LIMIT} per minute, the same traffic for all"));
    minutes(&mut svg, (TOP, BOTTOM / 100), END_SECS);
    let height = |hits: usize| BOTTOM - hits as i64 * HIT;
    for hits in [0, 60, 120, 180, 240] {
        level(&mut svg, height(hits), END_SECS, " opacity=\".3\"");
        svg.text((38, height(hits) / 100 + 4), " text-anchor=\"end\"", &hits.to_string());
    }
    let mut ends = Vec::new();
    for (algorithm, admission) in all {
        let until = |at: i64| admission.admitted.partition_point(|admitted| *admitted <= at);
        let times = (FROM_SECS * 1_000..=END_SECS * 1_000).step_by(MILLIS);
        let line = steps(times.map(|at| (x(at), height(until(at)))));
        let Algorithm { colour, dashes, .. } = algorithm;
        svg.line(format_args!(
            "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"/>"
        ));
        ends.push((height(until(END_SECS * 1_000)) / 100, algorithm));
    }
    name_ends(&mut svg, ends);
    svg.finish()
}

/// Writes the names behind the ends of their lines, without overlap.
fn name_ends(svg: &mut Svg, mut ends: Vec<(i64, &Algorithm)>) {
    ends.sort_by_key(|(y, _)| *y);
    let left = x(END_SECS * 1_000) / 100 + 4;
    let all = ends.len() as i64 * NAME_HEIGHT;
    let middle = ends.get(ends.len() / 2).map_or(TOP, |(y, _)| *y);
    let mut free = (middle - all / 2).max(TOP);
    for (y, Algorithm { name, colour, .. }) in ends {
        let name_y = y.max(free);
        free = name_y + NAME_HEIGHT;
        let to = left + 16;
        svg.line(format_args!(
            "<path d=\"M{left} {y}L{to} {name_y}\" stroke=\"{colour}\" opacity=\".5\"/>"
        ));
        let style = format!(" fill=\"{colour}\" font-weight=\"600\"");
        svg.text((to + 4, name_y + 4), &style, name);
    }
}
