//! The program `tidegate`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_cli::run()
}
