//! SVG as text, in colours that read on white and on black.

use std::fmt::{Arguments, Write};

/// The colour of text and of the frame's lines.
pub const INK: &str = "#7a828e";

/// A drawing in the making.
#[derive(Debug)]
pub struct Svg(String);

impl Svg {
    /// A drawing of this size in pixels. Screen readers get `title` and `description`.
    #[must_use]
    pub fn new((width, height): (i64, i64), title: &str, description: &str) -> Svg {
        let mut svg = Svg(String::new());
        svg.line(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"11\" fill=\"{INK}\">"
        ));
        let (title, description) = (escape(title), escape(description));
        svg.line(format_args!("<title>{title}</title>\n<desc>{description}</desc>"));
        svg
    }

    /// Appends a line of SVG.
    pub fn line(&mut self, line: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    /// Appends text whose baseline begins, or ends, at a point in pixels. `style` begins with a space.
    pub fn text(&mut self, (x, y): (i64, i64), style: &str, text: &str) {
        let text = escape(text);
        self.line(format_args!("<text x=\"{x}\" y=\"{y}\"{style}>{text}</text>"));
    }

    /// The whole text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }
}

fn escape(text: &str) -> String {
    // XML cannot represent control characters, and a path may contain them.
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
