//! How many files this process, and the workers that it starts, may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to the highest that may be had. It is low for the sake of programs that use select(2),
/// often 1024, which is a tenth of --connections-max.
pub(crate) fn allow_all() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(before = current, now = maximum, "may open more files"),
        // Some systems have yet another limit. As many connections are served as there may be.
        Err(error) => tracing::warn!(
            %error,
            files = current,
            "the limit of open files was not raised; set LimitNOFILE= or ulimit -n"
        ),
    }
}
