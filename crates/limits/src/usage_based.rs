//! `--usage-based`: limits on usage that is debited afterwards must count denied hits.
//!
//! A limits file does not show how requests use its limits, so the operator names them.

use crate::compiled::Limit;
use crate::diagnostic::Diagnostic;
use crate::loader::Loaded;
use std::path::Path;
use tidegate_core::DeniedHits;

/// Adds a warning for each limit at or below one of `paths` that ignores denied hits. Fails with an error
/// for each path without a limit. `at` is the path of the limits files.
pub fn warn(loaded: &mut Loaded, at: &Path, paths: &[String]) -> Result<(), Vec<Diagnostic>> {
    let limits = loaded.rules.limits();
    let is_met = |path: &&String| limits.iter().any(|limit| is_below(limit, path));
    let unknown = paths.iter().filter(|path| !is_met(path)).map(|path| {
        let message = format!("`--usage-based {path}`: there is no limit at or below this path");
        Diagnostic::new(at, None, message)
    });
    let unknown: Vec<Diagnostic> = unknown.collect();
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let ignoring = limits.iter().filter(|limit| {
        limit.denied == DeniedHits::Ignore && paths.iter().any(|path| is_below(limit, path))
    });
    let warning = |limit: &&Limit| {
        let rule = limit.path.split('#').next().unwrap_or_default();
        let place = loaded.positions.get(rule);
        let (file, position) = place.map_or((at, None), |(file, at)| (&**file, Some(*at)));
        let message = format!(
            "limit {} ignores a debit larger than its remaining hits, so the next peek passes; set \
             `count_denied: true`",
            limit.path
        );
        Diagnostic::new(file, position, message)
    };
    let warnings: Vec<Diagnostic> = ignoring.map(warning).collect();
    drop(limits);
    loaded.warnings.extend(warnings);
    loaded.warnings.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
    Ok(())
}

/// Whether `path` is the path of the limit, of its rule, or of an ancestor.
fn is_below(limit: &Limit, path: &str) -> bool {
    let rest = limit.path.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '#']))
}
