//! This program in the place of envoyproxy/ratelimit, which has no arguments: it is all in its environment.
//!
//! So images and manifests that were made for that service need no other change than the image.

use super::ratelimit_env::RatelimitEnv;
use std::ffi::OsString;
use std::path::Path;

/// The name of that service's program.
const NAME: &str = "ratelimit";
/// What that service needs no variable for: it has no directory, and no endpoint of its own beside these.
pub(super) const DEFAULTS: [(&str, &str); 2] = [("data_dir", "off"), ("frs", "off")];

/// The arguments, and whether this program has that service's place: it has its name, or its environment, and no
/// arguments.
pub(super) fn arguments(
    arguments: impl Iterator<Item = OsString>,
    value_of: impl Fn(&'static str) -> Option<OsString>,
) -> (Vec<OsString>, bool) {
    let mut arguments: Vec<OsString> = arguments.collect();
    // A worker of a service in that place has an argument.
    let others = arguments.get(1..).unwrap_or_default();
    let is_alone = others.iter().all(|argument| argument == "--as-worker");
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let stand_in = is_alone && (name == Some(NAME.as_ref()) || RatelimitEnv::is_set(value_of));
    if stand_in {
        arguments.insert(1, super::SERVE.into());
    }
    (arguments, stand_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_goes_by_name_or_environment_and_has_no_arguments() {
        let check = |given: &[&str], variable: &str, expected: &[&str], stands_in: bool| {
            let given = given.iter().map(OsString::from);
            let found = arguments(given, |name| (name == variable).then(|| "x".into()));
            let expected: Vec<OsString> = expected.iter().map(OsString::from).collect();
            assert_eq!(found, (expected, stands_in));
        };
        check(&["/bin/ratelimit"], "", &["/bin/ratelimit", "serve"], true);
        check(&["tidegate"], "CONFIG_TYPE", &["tidegate", "serve"], true);
        check(
            &["tidegate", "--as-worker"],
            "RUNTIME_ROOT",
            &["tidegate", "serve", "--as-worker"],
            true,
        );
        // Of another program.
        check(&["tidegate"], "PORT", &["tidegate"], false);
        check(&["tidegate"], "", &["tidegate"], false);
        check(&["ratelimit", "--help"], "CONFIG_TYPE", &["ratelimit", "--help"], false);
        check(&["tidegate", "serve"], "CONFIG_TYPE", &["tidegate", "serve"], false);
    }
}
