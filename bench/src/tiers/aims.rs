//! An aim beside its figure.

/// What a figure should be at most.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Aim {
    pub(super) what: String,
    pub(super) figure: f64,
    pub(super) at_most: f64,
}

impl Aim {
    pub(super) fn print(&self) {
        println!("{}", self.line());
    }

    fn holds(&self) -> bool {
        self.figure <= self.at_most
    }

    fn line(&self) -> String {
        let Aim { what, figure, at_most } = self;
        let judged = if self.holds() { "holds" } else { "does not hold" };
        format!("{what}: {figure:.3} (aim: at most {at_most}; {judged})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_the_aim_holds() {
        #[track_caller]
        fn check(figure: f64, expected: &str) {
            let aim = Aim { what: "CPU".to_owned(), figure, at_most: 1.03 };
            assert_eq!(aim.line(), expected);
        }
        check(1.03, "CPU: 1.030 (aim: at most 1.03; holds)");
        check(1.0312, "CPU: 1.031 (aim: at most 1.03; does not hold)");
        check(f64::NAN, "CPU: NaN (aim: at most 1.03; does not hold)");
    }
}
