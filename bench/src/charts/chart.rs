//! One algorithm: offered and admitted requests as bars, and below them the hits of the last period at each
//! moment, with the maximum marked.

use super::algorithms::Algorithm;
use super::axes::{WIDTH, level, minutes, px, steps, x};
use super::traffic::{Admission, FROM_SECS, LIMIT, TO_SECS};
use tidegate_load::svg::{INK, Svg};

const HEIGHT: i64 = 278;
/// The width of a bar in milliseconds and in hundredths of a pixel. Bars begin on odd seconds, so that the
/// one around the boundary is empty.
const BAR_MILLIS: i64 = 2_000;
const BAR_WIDTH: i64 = 550;
/// The bottom of the bars, and the height per request.
const BARS_Y: i64 = 14_200;
const BARS_HIT: i64 = 400;
/// The bottom of the line, and the height per request.
const SUM_Y: i64 = 24_800;
const SUM_HIT: i64 = 50;
/// An empty area behind the first minute.
const NOTES_X: i64 = 88;
/// The interval between points of the line.
const SUM_MILLIS: usize = 500;

pub(super) fn draw(algorithm: &Algorithm, admission: &Admission) -> String {
    let Algorithm { name, setting, bound, colour, .. } = algorithm;
    let (peak_at, most) = admission.peak();
    let about = format!(
        "Offered: 100 requests in the ten seconds before a boundary of the minute, 100 in the ten \
         seconds after it, then 2 a second. Most admitted in any 60 s: {most}; never more than \
         {bound}."
    );
    let mut svg =
        Svg::new((WIDTH, HEIGHT), &format!("{name}: {LIMIT} per minute{setting}"), &about);
    let right = WIDTH - 19;
    svg.text((44, 20), " font-size=\"15\" font-weight=\"600\"", name);
    svg.text((44, 36), "", &format!("limit {LIMIT} per minute{setting}"));
    let headline = format!("most in any 60 s: {most}");
    let style =
        format!(" font-size=\"15\" font-weight=\"600\" text-anchor=\"end\" fill=\"{colour}\"");
    svg.text((right, 20), &style, &headline);
    svg.text((right, 36), " text-anchor=\"end\"", &format!("never more than {bound}"));
    minutes(&mut svg, (52, SUM_Y / 100), TO_SECS);

    let rule = " opacity=\".6\"";
    level(&mut svg, BARS_Y, TO_SECS, rule);
    let offered = bars(&admission.offered);
    svg.line(format_args!("<path d=\"{offered}\" fill=\"{INK}\" opacity=\".35\"/>"));
    let admitted = bars(&admission.admitted);
    svg.line(format_args!("<path d=\"{admitted}\" fill=\"{colour}\"/>"));
    legend(&mut svg, colour);

    level(&mut svg, SUM_Y, TO_SECS, rule);
    let height = |hits: u64| SUM_Y - hits as i64 * SUM_HIT;
    let limit = height(LIMIT.into());
    level(&mut svg, limit, TO_SECS, " stroke-dasharray=\"5 4\"");
    svg.text((40, limit / 100 + 4), " text-anchor=\"end\"", &LIMIT.to_string());
    let times = (FROM_SECS * 1_000..=TO_SECS * 1_000).step_by(SUM_MILLIS);
    let line = steps(times.map(|at| (x(at), height(admission.in_period_until(at)))));
    svg.line(format_args!(
        "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
    ));
    let (peak_x, peak_y) = (x(peak_at), height(most));
    svg.line(format_args!(
        "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/>",
        px(peak_x),
        px(peak_y)
    ));
    let style = format!(" font-weight=\"600\" text-anchor=\"end\" fill=\"{colour}\"");
    svg.text((peak_x / 100 - 8, peak_y / 100 + 2), &style, &most.to_string());
    svg.text((NOTES_X, 172), "", "admitted in the last 60 s");
    svg.finish()
}

/// The legend of the bars.
fn legend(svg: &mut Svg, colour: &str) {
    let (x, y) = (NOTES_X, 64);
    svg.text((x, y), "", "requests in 2 s:");
    svg.line(format_args!("<path d=\"M{x} {}h9v9h-9z\" fill=\"{INK}\" opacity=\".35\"/>", y + 8));
    svg.line(format_args!("<path d=\"M{x} {}h9v9h-9z\" fill=\"{colour}\"/>", y + 23));
    svg.text((x + 14, y + 16), "", "offered");
    svg.text((x + 14, y + 31), "", "admitted");
}

/// A bar for every two seconds with requests.
fn bars(requests: &[i64]) -> String {
    let mut path = String::new();
    for from in (FROM_SECS * 1_000..TO_SECS * 1_000).step_by(BAR_MILLIS as usize) {
        let count = requests.iter().filter(|at| (from..from + BAR_MILLIS).contains(at)).count();
        if count > 0 {
            let (x, height) = (x(from) + 50, count as i64 * BARS_HIT);
            let (x, y, width) = (px(x), px(BARS_Y), px(BAR_WIDTH));
            let height = px(height);
            path += &format!("M{x} {y}v-{height}h{width}v{height}z");
        }
    }
    path
}
