//! The axes of the charts. Coordinates are whole hundredths of a pixel, so that the bytes are the same
//! on every machine.

use super::traffic::FROM_SECS;
use tidegate_load::svg::{INK, Svg};

pub(super) const WIDTH: i64 = 720;
/// The position of the first second and the width of a second, in hundredths of a pixel.
const LEFT: i64 = 4_400;
const SECOND: i64 = 325;

/// A horizontal line from the left end to `to_secs`. `y` is in hundredths of a pixel.
pub(super) fn level(svg: &mut Svg, y: i64, to_secs: i64, style: &str) {
    let (from, to, y) = (px(x(FROM_SECS * 1_000)), px(x(to_secs * 1_000)), px(y));
    svg.line(format_args!("<path d=\"M{from} {y}H{to}\" stroke=\"{INK}\"{style}/>"));
}

/// Vertical lines at minutes up to `to_secs`, from `top` to `bottom` in pixels.
pub(super) fn minutes(svg: &mut Svg, (top, bottom): (i64, i64), to_secs: i64) {
    for secs in (-60..=to_secs).step_by(60) {
        let x = x(secs * 1_000);
        let style = if secs == 0 { "" } else { " stroke-dasharray=\"2 3\" opacity=\".6\"" };
        svg.line(format_args!("<path d=\"M{} {top}V{bottom}\" stroke=\"{INK}\"{style}/>", px(x)));
        let label = match secs {
            0 => "boundary of the minute".to_owned(),
            secs => format!("{secs:+} s").replace('-', "\u{2212}"),
        };
        let place = (x / 100, bottom + 13);
        svg.text(place, " text-anchor=\"middle\"", &label);
    }
}

/// The position of a time in hundredths of a pixel. `millis` counts from the boundary.
pub(super) fn x(millis: i64) -> i64 {
    LEFT + (millis - FROM_SECS * 1_000) * SECOND / 1_000
}

/// Formats hundredths of a pixel as pixels.
pub(super) fn px(hundredths: i64) -> String {
    let sign = if hundredths < 0 { "-" } else { "" };
    let (whole, part) = (hundredths.abs() / 100, hundredths.abs() % 100);
    match part {
        0 => format!("{sign}{whole}"),
        part if part % 10 == 0 => format!("{sign}{whole}.{}", part / 10),
        part => format!("{sign}{whole}.{part:02}"),
    }
}

/// A step line: horizontal up to each point, then vertical to its height. In hundredths of a pixel.
pub(super) fn steps(points: impl IntoIterator<Item = (i64, i64)>) -> String {
    let mut path = String::new();
    let mut last: Option<(i64, i64)> = None;
    let mut drawn_to = 0;
    for (x, y) in points {
        match last {
            None => {
                path += &format!("M{} {}", px(x), px(y));
                drawn_to = x;
            }
            Some((_, height)) if height != y => {
                path += &format!("h{}v{}", px(x - drawn_to), px(y - height));
                drawn_to = x;
            }
            Some(_) => {}
        }
        last = Some((x, y));
    }
    if let Some((x, _)) = last {
        path += &format!("h{}", px(x - drawn_to));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundredths_become_the_shortest_number() {
        for (hundredths, expected) in
            [(0, "0"), (700, "7"), (750, "7.5"), (705, "7.05"), (-5, "-0.05"), (-1_230, "-12.3")]
        {
            assert_eq!(px(hundredths), expected);
        }
    }

    #[test]
    fn steps_are_drawn_where_the_height_changes_and_up_to_the_end() {
        let points = [(0, 500), (100, 500), (200, 400), (300, 400)];
        assert_eq!(steps(points), "M0 5h2v-1h1");
        assert_eq!(steps([]), "");
    }
}
