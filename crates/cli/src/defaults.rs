//! Defaults of flags from elsewhere: the environment of envoyproxy/ratelimit (`env`), and an FRS's `srv.xml`.

pub(crate) mod env;
pub(crate) mod srv;
