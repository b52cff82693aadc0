//! The documentation names every option and every variable.

use super::ratelimit_env::names;
use crate::arguments::Cli;
use clap::CommandFactory;
use std::path::Path;

fn page(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    std::fs::read_to_string(docs.join(name)).unwrap()
}

#[test]
fn every_flag_of_the_sidecar_has_a_row() {
    // A table of the others has only the beginning of these.
    const BEGINNING: &str = "--authority-per-second-";
    let pages = page("sidecar.md") + &page("frs.md");
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let flags = serve.get_arguments().filter(|flag| !flag.is_hide_set());
    for flag in flags.filter_map(|flag| flag.get_long()) {
        let long = format!("--{flag}");
        let rest = long.strip_prefix(BEGINNING).map(|rest| format!("`-{rest}`"));
        let is_there = |name: &str| pages.contains(&format!("`{name}")) || pages.contains(name);
        assert!(rest.as_deref().map_or_else(|| is_there(&long), is_there), "{long}");
    }
}

#[test]
fn every_variable_of_envoyproxy_ratelimit_has_a_row() {
    let page = page("envoyproxy-ratelimit.md");
    let beginnings: Vec<&str> =
        page.split('`').filter_map(|name| name.strip_suffix("_…")).collect();
    for name in names() {
        let is_there = page.contains(&format!("`{name}`"));
        let of_many = || beginnings.iter().any(|beginning| name.starts_with(beginning));
        assert!(is_there || of_many(), "{name}");
    }
}
