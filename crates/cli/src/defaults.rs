//! The sources of options, and their order. The first source with a value wins:
//!
//! 1. flags
//! 2. `TIDEGATE_*` variables
//! 3. variables of envoyproxy/ratelimit (`ratelimit_env`)
//! 4. the `srv.xml` of an FRS (`srv`)
//! 5. built-in defaults
//!
//! A program in the place of envoyproxy/ratelimit has its built-in defaults instead (`stand_in`).
//!
//! clap merges 1, 2 and 5; [`parse`] makes 3 and 4 its defaults. Both are for `tidegate serve` only.

mod authority;
#[cfg(test)]
mod documented;
pub(crate) mod ratelimit_env;
pub(crate) mod srv;
mod stand_in;

use crate::arguments::{Cli, Command, ServeOptions, url};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use ratelimit_env::{Extent, Notices, RatelimitEnv};
use srv::Srv;
use std::ffi::OsString;
use std::process::ExitCode;

/// The subcommand that has defaults from elsewhere.
const SERVE: &str = "serve";

/// The option that names the servers of shared counters. Those of others about them begin with the same word.
const AUTHORITY: &str = "authority";

/// A default for a flag.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FlagDefault {
    /// Its source for the log: variables or a file.
    pub(crate) source: &'static str,
    pub(crate) id: &'static str,
    pub(crate) value: String,
}

impl FlagDefault {
    /// The value as it may be logged: without a password.
    fn shown(&self) -> String {
        match self.id.ends_with("password") {
            true => "…".to_owned(),
            false => url::shown(&self.value),
        }
    }
}

/// The options of this process, and notices about its environment. An error has been printed.
pub(crate) fn parse_options() -> Result<(Cli, Notices), ExitCode> {
    let (arguments, stand_in) = stand_in::arguments(std::env::args_os(), std::env::var_os);
    // The file must be read before the command line, as it changes the defaults there.
    let srv = match srv::path(arguments.iter().cloned(), std::env::var_os("TIDEGATE_SRV")) {
        Some(path) => srv::read(&path).map_err(|mistakes| {
            eprintln!("tidegate: {mistakes}");
            ExitCode::FAILURE
        })?,
        None => Srv::default(),
    };
    let extent = if stand_in { Extent::Whole } else { Extent::Set };
    let mut environment = RatelimitEnv::read(extent, std::env::var_os);
    if stand_in {
        environment.add_built_in(&stand_in::DEFAULTS);
    }
    let (cli, notices) = parse(arguments, &srv, &environment).unwrap_or_else(|error| error.exit());
    if let Command::Serve(options) = &cli.command {
        let is_named = options.authority.authority.is_some();
        let of_servers = if is_named { &[] } else { environment.authority_mistakes() };
        let mistakes = environment.mistakes().iter().chain(of_servers);
        if mistakes.map(|mistake| eprintln!("tidegate: {mistake}")).count() > 0 {
            return Err(ExitCode::from(2));
        }
    }
    Ok((cli, notices))
}

/// Parses a command line with the other sources as defaults.
fn parse<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    srv: &Srv,
    environment: &RatelimitEnv,
) -> Result<(Cli, Notices), clap::Error> {
    let arguments: Vec<A> = arguments.into_iter().collect();
    let srv = srv.flags();
    let command = |is_used: fn(&FlagDefault) -> bool| {
        // The later default wins.
        let defaults = srv.iter().chain(environment.defaults().iter().filter(|it| is_used(it)));
        Cli::command().mut_subcommand(SERVE, |serve| defaults.fold(serve, with_default))
    };
    let mut command_line = command(|_| true);
    let mut matches = command_line.try_get_matches_from_mut(arguments.clone())?;
    let serve = matches.subcommand_matches(SERVE);
    let is_named = serve.is_some_and(|serve| !is_default(serve, AUTHORITY));
    if is_named {
        // Passwords and files of one service are not for the servers of another.
        command_line = command(|default| !default.id.starts_with(AUTHORITY));
        matches = command_line.try_get_matches_from_mut(arguments)?;
    }
    let mut cli = Cli::from_arg_matches(&matches)?;
    let (Command::Serve(options), Some(serve)) =
        (&mut cli.command, matches.subcommand_matches(SERVE))
    else {
        return Ok((cli, Notices::default()));
    };
    drop_default_geometry(options, serve);
    authority::check(options, serve)
        .map_err(|mistake| command_line.error(ErrorKind::ValueValidation, mistake))?;
    let is_of_others = |id: &str| is_named && id.starts_with(AUTHORITY);
    let notices = environment.notices(|id| is_default(serve, id) && !is_of_others(id));
    Ok((cli, notices))
}

fn with_default(serve: clap::Command, default: &FlagDefault) -> clap::Command {
    let FlagDefault { id, value, .. } = default;
    debug_assert!(serve.get_arguments().any(|flag| flag.get_id() == id), "no flag {id}");
    // clap does not accept a default for a required flag.
    serve.mut_arg(id, |flag| flag.required(false).default_value(value.clone()))
}

fn is_default(serve: &ArgMatches, id: &str) -> bool {
    serve.value_source(id) == Some(ValueSource::DefaultValue)
}

/// `--capacity` and `--load` replace a geometry from a lower source.
fn drop_default_geometry(options: &mut ServeOptions, serve: &ArgMatches) {
    let is_given = |id| serve.value_source(id).is_some() && !is_default(serve, id);
    if (is_given("capacity") || is_given("load")) && !is_given("geometry") {
        options.store.geometry = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The options of `serve`, required ones included, and the notices.
    pub(super) fn serve_options(
        arguments: &[&str],
        srv: &Srv,
        environment: &RatelimitEnv,
    ) -> (ServeOptions, Notices) {
        let required = ["tidegate", SERVE, "--data-dir", "d"];
        let arguments = [&required[..], arguments].concat();
        match parse(arguments, srv, environment).unwrap() {
            (Cli { command: Command::Serve(options) }, notices) => (*options, notices),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// One flag with a value in each source that can have it.
    #[test]
    fn the_first_source_with_a_value_wins() {
        let srv = srv::parse(Path::new("srv.xml"), b"<srv port='1' workers='2'/>").unwrap();
        let environment =
            RatelimitEnv::read(Extent::Set, |name| (name == "GRPC_PORT").then(|| "3".into()));
        let (none, empty) = (Srv::default(), RatelimitEnv::default());
        let limits = ["--limits", "l"];
        let frs = |arguments: &[&str], srv: &Srv| {
            let arguments = [&limits[..], arguments].concat();
            format!("{:?}", serve_options(&arguments, srv, &environment).0.frs.address)
        };
        assert!(frs(&[], &none).contains("127.0.0.1:8090"));
        assert!(frs(&[], &srv).contains("127.0.0.1:1"));
        assert!(frs(&["--frs", "127.0.0.1:4"], &srv).contains("127.0.0.1:4"));
        let grpc = |arguments: &[&str], environment: &RatelimitEnv| {
            let arguments = [&limits[..], arguments].concat();
            format!("{:?}", serve_options(&arguments, &srv, environment).0.grpc)
        };
        assert!(grpc(&[], &empty).contains("127.0.0.1:8081"));
        assert!(grpc(&[], &environment).contains("127.0.0.1:3"));
        assert!(grpc(&["--grpc", "127.0.0.1:4"], &environment).contains("127.0.0.1:4"));
    }
}
