//! The limit of open files of this process and its workers. Each connection is one open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. The default, often 1024 for the sake of select(2), is a tenth of
/// --connections-max.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => {
            tracing::debug!(before = current, now = maximum, "raised the limit of open files");
        }
        // Some systems have a further limit. Serve as many connections as it permits.
        Err(error) => tracing::warn!(
            %error,
            files = current,
            "the limit of open files was not raised; set LimitNOFILE= or ulimit -n"
        ),
    }
}
