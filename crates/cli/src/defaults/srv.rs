//! `srv.xml`, the configuration file of an FRS: its address, the number of workers, the daily reset of counters,
//! and the size of the cluster of counters.
//!
//! Flags and environment variables override it. A file with a mistake is refused as a whole, and every mistake is
//! reported with its place.

use super::{FlagDefault, SERVE};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tidegate_data_dir::NodeCounts;
use tidegate_limits::{Diagnostic, daily_reset, whole_number};
use tidegate_process::WORKERS_MAX;
use tidegate_store::GeometryError;
use tidegate_xml::{self as xml, Attribute, Document, Element, Event, XmlError};

/// Far more than such a file needs.
const BYTES_MAX: u64 = 64 * 1024;
const KNOWN: &str = "workers, host, port, files, key-nodes, chain, self-update, timezone";
/// The size of the cluster: all of these or none.
const CLUSTER: [&str; 3] = ["files", "key-nodes", "chain"];

/// The attributes; `None` for those left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Srv {
    pub(crate) workers: Option<u16>,
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    files: Option<u32>,
    key_nodes: Option<u64>,
    chain: Option<u32>,
    pub(crate) self_update: Option<String>,
    pub(crate) timezone: Option<String>,
}

/// The path after `--srv` of a `serve` command, or else from the environment.
pub(crate) fn path(
    arguments: impl Iterator<Item = OsString>,
    variable: Option<OsString>,
) -> Option<PathBuf> {
    let mut arguments = arguments.skip(1).skip_while(|argument| {
        // Options before the subcommand have no values.
        argument.to_str().is_some_and(|argument| argument.starts_with('-'))
    });
    if arguments.next()? != SERVE {
        return None;
    }
    let mut found = None;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if text == "--srv" {
            found = arguments.next();
        } else if let Some(path) = text.strip_prefix("--srv=") {
            found = Some(path.into());
        }
    }
    found.or(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Reads the file; an error has every mistake, one a line.
pub(crate) fn read(path: &Path) -> Result<Srv, String> {
    let at = path.display();
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("{at}: cannot read: {error}"))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("{at}: more than {BYTES_MAX} bytes, which no srv.xml needs"));
    }
    parse(path, &bytes).map_err(|mistakes| {
        let lines: String = mistakes.iter().map(|mistake| format!("{mistake}\n")).collect();
        let plural = if mistakes.len() == 1 { "mistake" } else { "mistakes" };
        format!("{lines}{} {plural} in {at}", mistakes.len())
    })
}

/// Whether the root of a document is `srv`.
pub(crate) fn is_srv(bytes: &[u8]) -> bool {
    let Ok(text) = xml::text(bytes) else { return false };
    let Ok(mut document) = Document::new(text, 1) else { return false };
    matches!(document.next_event(), Ok(Event::Open(root)) if root.name == "srv")
}

pub(crate) fn parse(file: &Path, bytes: &[u8]) -> Result<Srv, Vec<Diagnostic>> {
    let placed = |text: &str, mistake: XmlError| {
        Diagnostic::new(file, xml::position(text, mistake.at), mistake.message)
    };
    let text = xml::text(bytes)
        .map_err(|mistake| vec![placed(&String::from_utf8_lossy(bytes), mistake)])?;
    let diagnostic = |mistake| placed(text, mistake);
    let fatal = |mistake| vec![diagnostic(mistake)];
    let mut document = Document::new(text, 1).map_err(fatal)?;
    let (mut srv, mut mistakes) = (Srv::default(), Vec::new());
    while let Event::Open(element) = document.next_event().map_err(fatal)? {
        if element.name != "srv" {
            return Err(fatal(element.refuse("<srv>")));
        }
        for attribute in &element.attributes {
            mistakes.extend(srv.take(attribute).err().map(diagnostic));
        }
        mistakes.extend(srv.check(&element).err().map(diagnostic));
        // The end of the root; an element inside it is a mistake.
        document.next_event().map_err(fatal)?;
    }
    if mistakes.is_empty() { Ok(srv) } else { Err(mistakes) }
}

impl Srv {
    fn take(&mut self, attribute: &Attribute<'_>) -> Result<(), XmlError> {
        let value = &*attribute.value;
        match attribute.name {
            "workers" => self.workers = Some(number(attribute, WORKERS_MAX)?),
            "port" => self.port = Some(number(attribute, u16::MAX)?),
            // The store checks their ranges together.
            "files" => self.files = Some(number(attribute, u32::MAX)?),
            "key-nodes" => self.key_nodes = Some(number(attribute, u64::MAX)?),
            "chain" => self.chain = Some(number(attribute, u32::MAX)?),
            "host" if value.is_empty() || value.contains(char::is_whitespace) => {
                return Err(attribute.wrong("a name or an address"));
            }
            "host" => self.host = Some(value.to_owned()),
            "self-update" => {
                daily_reset(value, "UTC")
                    .map_err(|_| attribute.wrong("a time of day such as 03:00"))?;
                self.self_update = Some(value.to_owned());
            }
            "timezone" => {
                daily_reset("00:00", value)
                    .map_err(|message| XmlError::unexpected(attribute.value_at, message))?;
                self.timezone = Some(value.to_owned());
            }
            _ => return Err(attribute.refuse("srv", KNOWN)),
        }
        Ok(())
    }

    /// Checks attributes that need others.
    fn check(&self, element: &Element<'_>) -> Result<(), XmlError> {
        let attribute = |name| element.attribute(name);
        let (given, missing): (Vec<&str>, Vec<&str>) =
            CLUSTER.into_iter().partition(|name| attribute(*name).is_some());
        if let Some(first) = given.first().copied().and_then(attribute) {
            if !missing.is_empty() {
                let missing = missing.join("` and `");
                return Err(XmlError::unexpected(
                    first.at,
                    format!("`{}` needs `{missing}`", first.name),
                ));
            }
            if let Err(error) = self.geometry().map_or(Ok(()), |count| count.geometry().map(drop)) {
                let at = match &error {
                    GeometryError::Range { what: "number of files", .. } => attribute("files"),
                    GeometryError::Range { what: "chain length", .. } => attribute("chain"),
                    _ => attribute("key-nodes"),
                };
                return Err(XmlError::unexpected(at.unwrap_or(first).value_at, error.to_string()));
            }
        }
        for (name, other, message) in [
            ("host", "port", "`host` needs a `port`"),
            ("timezone", "self-update", "`timezone` has no effect without `self-update`"),
        ] {
            if let (Some(alone), None) = (attribute(name), attribute(other)) {
                return Err(XmlError::unexpected(alone.at, message));
            }
        }
        Ok(())
    }

    /// The size of the cluster, if given.
    fn geometry(&self) -> Option<NodeCounts> {
        let (files, key_nodes, chain) = (self.files?, self.key_nodes?, self.chain?);
        Some(NodeCounts { files, key_nodes, chain })
    }

    /// The equivalent flags.
    pub(crate) fn flags(&self) -> Vec<FlagDefault> {
        let mut flags = Vec::new();
        let mut flag = |id, value: Option<String>| {
            flags.extend(value.map(|value| FlagDefault { source: "srv.xml", id, value }));
        };
        flag("workers", self.workers.map(|workers| workers.to_string()));
        let host = self.host.as_deref().unwrap_or("127.0.0.1");
        // An IPv6 address needs brackets before a port.
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        flag("frs", self.port.map(|port| format!("{host}:{port}")));
        flag("geometry", self.geometry().map(|count| count.to_string()));
        flag("frs-self-update", self.self_update.clone());
        flag("frs-timezone", self.timezone.clone());
        flags
    }
}

fn number<N: FromStr + PartialOrd + Display + Copy>(
    attribute: &Attribute<'_>,
    most: N,
) -> Result<N, XmlError> {
    let number = whole_number(&attribute.value).filter(|number| *number <= most);
    number.ok_or_else(|| attribute.wrong(&format!("a whole number from 0 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ServeOptions;
    use crate::defaults::ratelimit_env::RatelimitEnv;
    use crate::defaults::tests::serve_options;

    fn parse_text(text: &str) -> Result<Srv, Vec<Diagnostic>> {
        parse(Path::new("srv.xml"), text.as_bytes())
    }

    fn mistakes(text: &str) -> Vec<String> {
        let mistakes = parse_text(text).unwrap_err();
        let line = |mistake: &Diagnostic| mistake.to_string().replacen("srv.xml:", "", 1);
        mistakes.iter().map(line).collect()
    }

    #[test]
    fn a_file_says_where_to_listen_and_when_to_reset() {
        let text = "<?xml version=\"1.0\"?>\n<srv workers=\"4\" host=\"::1\" port=\"8090\" \
                    files=\"4\" key-nodes=\"65536\" chain=\"35\" self-update=\"03:00\" \
                    timezone=\"+08:00\"/>";
        let srv = parse_text(text).unwrap();
        let flags = srv.flags();
        let flags: Vec<(&str, &str)> = flags.iter().map(|flag| (flag.id, &*flag.value)).collect();
        let expected = [
            ("workers", "4"),
            ("frs", "[::1]:8090"),
            ("geometry", "4x65536x35"),
            ("frs-self-update", "03:00"),
            ("frs-timezone", "+08:00"),
        ];
        assert_eq!(flags, expected);
        assert_eq!(parse_text("<srv/>").unwrap(), Srv::default());
        assert!(Srv::default().flags().is_empty());
    }

    #[test]
    fn every_mistake_is_reported_with_its_place() {
        let text = "<srv workers=\"31\"\n  port=\"70000\"\n  host=\"\" colour=\"red\"\n  \
                    self-update=\"24:00\" timezone=\"Mars\"/>";
        let found = mistakes(text);
        assert_eq!(found.len(), 6, "{found:#?}");
        let expected = [
            "1:15: workers \"31\": expected a whole number from 0 to 30",
            "2:9: port \"70000\": expected a whole number from 0 to 65535",
            "3:9: host \"\": expected a name or an address",
            "3:11: unknown attribute \"colour\" of <srv>; expected workers, host, port, files, \
             key-nodes, chain, self-update, timezone",
            "4:16: self-update \"24:00\": expected a time of day such as 03:00",
        ];
        assert_eq!(found[..5], expected);
        assert!(found[5].starts_with("4:33: unknown timezone \"Mars\""), "{}", found[5]);
        assert_eq!(mistakes("<srv host=\"a\"/>"), ["1:6: `host` needs a `port`"]);
        assert_eq!(
            mistakes("<srv timezone=\"UTC\"/>"),
            ["1:6: `timezone` has no effect without `self-update`"]
        );
        for (cluster, message) in [
            ("files='4'", "1:6: `files` needs `key-nodes` and `chain`"),
            ("key-nodes='4' chain='4'", "1:6: `key-nodes` needs `files`"),
            (
                "files='129' key-nodes='9' chain='9'",
                "1:13: number of files 129 is not allowed (1 to 128)",
            ),
            (
                "files='1' key-nodes='0' chain='9'",
                "1:27: number of key-nodes 0 is not allowed (1 to 1099511627776)",
            ),
            (
                "files='1' key-nodes='9' chain='41'",
                "1:37: chain length 41 is not allowed (1 to 40)",
            ),
            (
                "files='128' key-nodes='1099511627776' chain='40'",
                "1:29: 325385073078042624 bytes are too much for one cluster (at most \
                 70368744177664)",
            ),
            (
                "files='x' key-nodes='9' chain='9'",
                "1:13: files \"x\": expected a whole number from 0 to 4294967295",
            ),
        ] {
            assert_eq!(mistakes(&format!("<srv {cluster}/>"))[0], message);
        }
        assert_eq!(mistakes("<map/>"), ["1:1: unknown element \"map\"; expected <srv>"]);
        assert_eq!(mistakes("<srv><a/></srv>"), ["1:6: elements are nested more than 1 deep"]);
        assert_eq!(
            mistakes("<srv"),
            ["1:1: syntax error: tag not closed: `>` not found before end of input"]
        );
    }

    fn options(arguments: &[&str], srv: &Srv) -> ServeOptions {
        let arguments = [&["--limits", "l"], arguments].concat();
        serve_options(&arguments, srv, &RatelimitEnv::default()).0
    }

    #[test]
    fn the_cluster_is_as_large_as_the_file_says_unless_a_flag_does() {
        let srv = parse_text("<srv files='2' key-nodes='100' chain='3'/>").unwrap();
        let asked = |arguments: &[&str]| {
            options(arguments, &srv).store.geometry.map(|count| count.to_string())
        };
        assert_eq!(asked(&[]).as_deref(), Some("2x100x3"));
        assert_eq!(asked(&["--wide-capacity", "0"]).as_deref(), Some("2x100x3"));
        assert_eq!(asked(&["--geometry", "1x5x9"]).as_deref(), Some("1x5x9"));
        assert_eq!(asked(&["--geometry", "1x5x9", "--load", "0.5"]).as_deref(), Some("1x5x9"));
        assert_eq!(asked(&["--capacity", "9"]), None);
        assert_eq!(asked(&["--load", "0.5"]), None);
    }

    #[test]
    fn a_document_is_known_by_its_root() {
        for (text, is) in [
            ("<srv/>", true),
            ("<?xml version='1.0'?>\n<!-- it --><srv port='x'", false),
            ("<?xml version='1.0'?>\n<!-- it --><srv port='x'>", true),
            ("<map/>", false),
            ("<srvs/>", false),
            ("", false),
        ] {
            assert_eq!(is_srv(text.as_bytes()), is, "{text}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let srv = parse_text("<srv workers=\"2\" port=\"9\" self-update=\"04:30\"/>").unwrap();
        let of = |options: ServeOptions| {
            let update = options.frs.self_update().unwrap().unwrap();
            (options.frs.address, update.time_of_day().as_nanos() / 60_000_000_000)
        };
        let tcp = |text: &str| tidegate_servers::Address::Tcp(text.to_owned());
        assert_eq!(of(options(&[], &srv)), (tcp("127.0.0.1:9"), 270));
        let flags = ["--frs", "localhost:1", "--frs-self-update", "00:01"];
        assert_eq!(of(options(&flags, &srv)), (tcp("localhost:1"), 1));
    }

    #[test]
    fn the_path_is_found_before_the_command_line_is_read() {
        let check = |arguments: &[&str], variable: Option<&str>, expected: Option<&str>| {
            let arguments = arguments.iter().map(OsString::from);
            let found = path(arguments, variable.map(OsString::from));
            assert_eq!(found.as_deref(), expected.map(Path::new));
        };
        check(&["tidegate", "serve", "--srv", "a.xml"], Some("b.xml"), Some("a.xml"));
        check(&["tidegate", "serve", "--srv=a.xml", "--limits", "l"], None, Some("a.xml"));
        check(&["tidegate", "serve", "--limits", "l"], Some("b.xml"), Some("b.xml"));
        check(&["tidegate", "serve"], Some(""), None);
        check(&["tidegate", "check", "--srv", "a.xml"], Some("b.xml"), None);
        check(&["tidegate"], Some("b.xml"), None);
    }
}
