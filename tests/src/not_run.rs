//! Tests that cannot run here: each is named, with what it needs, in a line that the captured output of tests does
//! not swallow.

use anyhow::{Context, ensure};
use std::io::Write;

/// Set to 1 where every test must run.
const MUST_RUN: &str = "TIDEGATE_ROOT_TESTS";

/// Returns what a test needs. If it could not be made, writes `not run: TEST: needs NEED` and returns nothing.
///
/// # Errors
/// With the cause, where `TIDEGATE_ROOT_TESTS=1` forbids that.
pub fn or_named<T>(need: &str, had: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    let error = match had {
        Ok(had) => return Ok(Some(had)),
        Err(error) => error,
    };
    let error = error.context(format!("needs {need}"));
    if std::env::var(MUST_RUN).is_ok_and(|value| value == "1") {
        return Err(error.context(format!("{MUST_RUN}=1, and this test cannot run here")));
    }
    // Each test runs in a thread of its name.
    let thread = std::thread::current();
    let test = thread.name().context("a test without a name")?;
    let line = line(test, &error);
    // One write of the whole line: other tests write, too. Not by `eprint`, which is captured.
    std::io::stderr().write_all(line.as_bytes())?;
    Ok(None)
}

fn line(test: &str, error: &anyhow::Error) -> String {
    let cause = format!("{error:#}").replace('\n', " ");
    // The harness may have begun a line.
    format!("\nnot run: {test}: {cause}\n")
}

/// That this process is root's.
///
/// # Errors
/// When it is not.
pub fn root() -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "this is user {}", uid());
    Ok(())
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_test_the_need_and_the_cause() {
        let error = anyhow::anyhow!("no cgroups\nhere").context("needs a control group");
        let expected = "\nnot run: files::a_test: needs a control group: no cgroups here\n";
        assert_eq!(line("files::a_test", &error), expected);
    }

    #[test]
    fn what_can_be_had_is_handed_on() -> anyhow::Result<()> {
        assert_eq!(or_named("nothing", Ok(7))?, Some(7));
        Ok(())
    }
}
