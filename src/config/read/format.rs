//! Compiles formats: texts with Envoy's substitution commands.

use super::checks::{as_header_name, owned, property_path};
use super::commands::{From, known};
use super::metadata::{CLUSTER_ENTRY, DYNAMIC, ROUTE_ENTRY, Root};
use crate::config::ConfigError;
use crate::config::format::{Command, Format, LENGTH_MAX, Moment, Piece, Show};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::Source;

/// Bounds the work for one value.
const COMMANDS_MAX: usize = 16;

/// Compiles a text with commands.
pub(super) fn format(
    node: &Node<'_>,
    moment: Moment,
    interner: &mut Interner,
) -> Result<Format, ConfigError> {
    let text = node.text()?;
    let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
    let mut commands = 0_usize;
    while let Some((before, after)) = rest.split_once('%') {
        plain.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            plain.push('%');
            rest = after;
            continue;
        }
        let Some((written, after)) = Written::parse(node, after)? else {
            let at = text.len().saturating_sub(after.len()).saturating_sub(1);
            let message = format!("no command begins at byte {at}; a percent sign is `%%`");
            return Err(node.error(&message));
        };
        rest = after;
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        pieces.push(Piece::Command(written.compile(node, moment, interner)?));
        commands = commands.saturating_add(1);
    }
    if commands > COMMANDS_MAX {
        let message = format!("{commands} commands are too many (maximum {COMMANDS_MAX})");
        return Err(node.error(&message));
    }
    plain.push_str(rest);
    if !plain.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(Format(pieces))
}

/// Compiles a text that is one command.
pub(super) fn command(
    node: &Node<'_>,
    moment: Moment,
    interner: &mut Interner,
) -> Result<Command, ConfigError> {
    let mut pieces = format(node, moment, interner)?.0;
    match (pieces.pop(), pieces.is_empty()) {
        (Some(Piece::Command(command)), true) => Ok(command),
        _ => Err(node.error("expected exactly one command, such as \"%REQ(x-cost)%\"")),
    }
}

/// A command as it is written.
struct Written<'a> {
    name: &'a str,
    from: From,
    /// The text between parentheses.
    arguments: Option<&'a str>,
    length: Option<&'a str>,
}

impl<'a> Written<'a> {
    /// The command after a percent sign, and the rest of the text after it; none if it is
    /// malformed.
    fn parse(node: &Node<'_>, text: &'a str) -> Result<Option<(Self, &'a str)>, ConfigError> {
        let is_of_names =
            |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
        let length = text.bytes().take_while(is_of_names).count();
        let Some((name, mut rest)) = text.split_at_checked(length).filter(|_| length > 0) else {
            return Ok(None);
        };
        let from = known(node, name)?;
        let mut written = Written { name, from, arguments: None, length: None };
        if let Some((arguments, after)) =
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        {
            (written.arguments, rest) = (Some(arguments), after);
        }
        if let Some(after) = rest.strip_prefix(':') {
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let Some((digits, after)) = after.split_at_checked(digits).filter(|_| digits > 0)
            else {
                return Ok(None);
            };
            (written.length, rest) = (Some(digits), after);
        }
        Ok(rest.strip_prefix('%').map(|rest| (written, rest)))
    }

    fn compile(
        &self,
        node: &Node<'_>,
        moment: Moment,
        interner: &mut Interner,
    ) -> Result<Command, ConfigError> {
        let length_max = self.length_max(node)?;
        if let From::ResponseHeader | From::EndProperty(..) = self.from
            && moment == Moment::Request
        {
            let message = "has no value when a request arrives; only a cost with \
                           `apply_on_stream_done` may use it";
            return Err(self.error(node, message));
        }
        let (source, or, show) = match self.from {
            From::Header => self.headers(node, Source::Header)?,
            From::ResponseHeader => self.headers(node, Source::ResponseHeader)?,
            From::Parameter => {
                (Source::Parameter(self.argument(node)?.to_owned()), None, Show::Bytes)
            }
            From::Path => self.path(node)?,
            From::Metadata(root) => self.metadata(node, root, self.argument(node)?)?,
            From::AnyMetadata => {
                let (kind, path) = self.argument(node)?.split_once(':').unwrap_or_default();
                self.metadata(node, self.root(node, kind)?, path)?
            }
            From::FilterState => {
                let Some(key) = self.argument(node)?.strip_suffix(":PLAIN") else {
                    return Err(self.error(node, "is supported as `%FILTER_STATE(key:PLAIN)%`"));
                };
                (
                    Source::Text(property_path(node, owned(&["filter_state", key]))?),
                    None,
                    Show::Bytes,
                )
            }
            From::Property(path, show) | From::EndProperty(path, show) => {
                if self.arguments.is_some() {
                    return Err(self.error(node, "takes no arguments"));
                }
                (Source::Property(owned(path)), None, show)
            }
        };
        let or = or.map(|or| interner.fact(or));
        Ok(Command { fact: interner.fact(source), or, show, length_max })
    }

    #[inline(never)]
    fn length_max(&self, node: &Node<'_>) -> Result<Option<usize>, ConfigError> {
        let Some(digits) = self.length else { return Ok(None) };
        if let From::Property(..) | From::EndProperty(..) = self.from {
            return Err(self.error(node, "takes no length"));
        }
        match digits.parse() {
            Ok(length) if length <= LENGTH_MAX => Ok(Some(length)),
            _ => {
                let message = format!("has the length {digits}, out of range (0 to {LENGTH_MAX})");
                Err(self.error(node, &message))
            }
        }
    }

    #[inline(never)]
    fn argument(&self, node: &Node<'_>) -> Result<&'a str, ConfigError> {
        match self.arguments {
            None | Some("") => Err(self.error(node, "needs arguments in parentheses")),
            Some(arguments) => Ok(arguments),
        }
    }

    /// A header, and the one that replaces it.
    #[inline(never)]
    fn headers(
        &self,
        node: &Node<'_>,
        source: fn(String) -> Source,
    ) -> Result<(Source, Option<Source>, Show), ConfigError> {
        let arguments = self.argument(node)?;
        let (name, or) = match arguments.split_once('?') {
            // As in Envoy.
            Some((name, "")) => (name, None),
            Some((name, or)) => (name, Some(source(as_header_name(node, or)?))),
            None => (arguments, None),
        };
        Ok((source(as_header_name(node, name)?), or, Show::Bytes))
    }

    #[inline(never)]
    fn path(&self, node: &Node<'_>) -> Result<(Source, Option<Source>, Show), ConfigError> {
        let arguments = self.arguments.unwrap_or_default();
        let (query, which) = arguments.split_once(':').unwrap_or((arguments, ""));
        let show = match query {
            "" | "WQ" => Show::Bytes,
            "NQ" => Show::WithoutQuery,
            _ => return Err(node.unknown("argument of `PATH`", query, &["WQ", "NQ"])),
        };
        let header = |name: &str| Source::Header(name.to_owned());
        let (path, original) = (header(":path"), header("x-envoy-original-path"));
        match which {
            "" | "ORIG_OR_PATH" => Ok((original, Some(path), show)),
            "PATH" => Ok((path, None, show)),
            "ORIG" => Ok((original, None, show)),
            _ => {
                let known = ["ORIG", "PATH", "ORIG_OR_PATH"];
                Err(node.unknown("argument of `PATH`", which, &known))
            }
        }
    }

    fn root(&self, node: &Node<'_>, kind: &str) -> Result<&'static Root, ConfigError> {
        const VIRTUAL_HOST: &Root = &["xds", "virtual_host_metadata", "filter_metadata"];
        Ok(match kind {
            "DYNAMIC" => DYNAMIC,
            "ROUTE" => ROUTE_ENTRY,
            "CLUSTER" => CLUSTER_ENTRY,
            "VIRTUAL_HOST" => VIRTUAL_HOST,
            "UPSTREAM_HOST" | "LISTENER" | "LISTENER_FILTER_CHAIN" => {
                return Err(self.error(node, &format!("of {kind}: a Wasm filter cannot see it")));
            }
            _ => {
                let known = ["DYNAMIC", "ROUTE", "CLUSTER", "VIRTUAL_HOST"];
                return Err(node.unknown("kind of metadata", kind, &known));
            }
        })
    }

    /// `namespace:key`, and further keys below it.
    #[inline(never)]
    fn metadata(
        &self,
        node: &Node<'_>,
        root: &Root,
        path: &str,
    ) -> Result<(Source, Option<Source>, Show), ConfigError> {
        if !path.contains(':') {
            return Err(self.error(node, "needs a namespace and a key: `namespace:key`"));
        }
        let mut parts = owned(root);
        parts.extend(path.split(':').map(str::to_owned));
        Ok((Source::Text(property_path(node, parts)?), None, Show::Metadata))
    }

    #[cold]
    #[inline(never)]
    fn error(&self, node: &Node<'_>, message: &str) -> ConfigError {
        node.error(&format!("`%{}%` {message}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree::Tree;
    use proptest::prelude::*;

    fn compiled(text: &str, moment: Moment) -> Result<Format, String> {
        let tree = Tree::Text(text.to_owned());
        let node = Node::document(&tree);
        let mut interner = Interner::of(&tree);
        format(&node, moment, &mut interner).map_err(|error| error.message)
    }

    /// A format as its sources, and what is done with their values.
    fn shown(format: &Format) -> String {
        let source = |fact: &crate::config::Fact| match &fact.source {
            Source::Header(name) => name.clone(),
            Source::Parameter(name) => format!("?{name}"),
            Source::ResponseHeader(name) => format!("<{name}"),
            Source::Cookie(name) => format!(";{name}"),
            Source::Property(path) => path.join("|"),
            Source::Text(path) => format!("{}.", path.join("|")),
        };
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => format!("{text:?}"),
            Piece::Command(Command { fact, or, show, length_max }) => {
                let or = or.as_ref().map_or(String::new(), |or| format!("?{}", source(or)));
                let length = length_max.map_or(String::new(), |length| format!(":{length}"));
                let show = match show {
                    Show::Bytes => String::new(),
                    show => format!(" {show:?}"),
                };
                format!("{}{or}{length}{show}", source(fact))
            }
        };
        format.0.iter().map(piece).collect::<Vec<_>>().join(" + ")
    }

    fn check(moment: Moment, table: &[(&str, &str)]) {
        for (text, expected) in table {
            let found = compiled(text, moment).map(|format| shown(&format));
            assert_eq!(found.as_deref(), Ok(*expected), "for {text}");
        }
    }

    #[test]
    fn a_format_is_texts_and_facts() {
        check(
            Moment::Request,
            &[
                ("%REQ(X-App)%", "x-app"),
                ("%REQ(:path?x-b):10%", ":path?x-b:10"),
                ("%REQ(a?)%", "a"),
                ("%REQUEST_HEADER(a):0%", "a:0"),
                ("a%%%REQ(b)%c%%", "\"a%\" + b + \"c%\""),
                ("%PROTOCOL%%REQ(b)%", "request|protocol + b"),
                ("%PATH%", "x-envoy-original-path?:path"),
                ("%PATH(NQ)%", "x-envoy-original-path?:path WithoutQuery"),
                ("%PATH(NQ:PATH):9%", ":path:9 WithoutQuery"),
                ("%PATH(WQ:ORIG)%", "x-envoy-original-path"),
                ("%QUERY_PARAM(a b)%", "?a b"),
                ("%DYNAMIC_METADATA(a.b:c:d):3%", "metadata|filter_metadata|a.b|c|d.:3 Metadata"),
                ("%CLUSTER_METADATA(a:b)%", "xds|cluster_metadata|filter_metadata|a|b. Metadata"),
                ("%METADATA(DYNAMIC:a:b)%", "metadata|filter_metadata|a|b. Metadata"),
                ("%METADATA(ROUTE:a:b)%", "xds|route_metadata|filter_metadata|a|b. Metadata"),
                ("%METADATA(CLUSTER:a:b)%", "xds|cluster_metadata|filter_metadata|a|b. Metadata"),
                (
                    "%METADATA(VIRTUAL_HOST:a:b)%",
                    "xds|virtual_host_metadata|filter_metadata|a|b. Metadata",
                ),
                ("%FILTER_STATE(a.b:PLAIN):5%", "filter_state|a.b.:5"),
                ("%DOWNSTREAM_REMOTE_ADDRESS%", "source|address"),
                ("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "source|address WithoutPort"),
                ("%DOWNSTREAM_LOCAL_PORT%", "destination|port Whole"),
                ("%DOWNSTREAM_PEER_URI_SAN%", "connection|uri_san_peer_certificate"),
                ("%UPSTREAM_CLUSTER_RAW%", "xds|cluster_name"),
            ],
        );
        check(
            Moment::End,
            &[
                ("%RESP(X-Cost?b):5%", "<x-cost?<b:5"),
                ("%RESPONSE_HEADER(a)%", "<a"),
                ("%RESPONSE_CODE%", "response|code Whole"),
                ("%BYTES_SENT%", "response|size Whole"),
                ("%BYTES_RECEIVED%", "request|size Whole"),
                ("%REQ(a)%", "a"),
            ],
        );
    }

    #[test]
    fn a_mistake_in_a_format_is_named() {
        let later = "has no value when a request arrives; only a cost with `apply_on_stream_done` \
                     may use it";
        let table = [
            ("100% %REQ(a)%", "no command begins at byte 3; a percent sign is `%%`"),
            ("%REQ(a)%%", "no command begins at byte 8; a percent sign is `%%`"),
            ("%REQ(a)", "no command begins at byte 0; a percent sign is `%%`"),
            ("%REQ(a):x%", "no command begins at byte 0; a percent sign is `%%`"),
            ("%REQ(a)b%", "no command begins at byte 0; a percent sign is `%%`"),
            ("%PROTOCOL(", "no command begins at byte 0; a percent sign is `%%`"),
            ("%REQ%", "`%REQ%` needs arguments in parentheses"),
            ("%REQ()%", "`%REQ%` needs arguments in parentheses"),
            ("%REQ(a b)%", "\"a b\" is not a header name"),
            ("%REQ(a?b?c)%", "\"b?c\" is not a header name"),
            ("%REQ(a):1025%", "`%REQ%` has the length 1025, out of range (0 to 1024)"),
            (
                "%REQ(a):99999999999999999999%",
                "`%REQ%` has the length 99999999999999999999, out of range (0 to 1024)",
            ),
            ("%PROTOCOL():3%", "`%PROTOCOL%` takes no length"),
            ("%PROTOCOL()%", "`%PROTOCOL%` takes no arguments"),
            ("%QUERY_PARAM%", "`%QUERY_PARAM%` needs arguments in parentheses"),
            (
                "%PATH(NX)%",
                "unknown argument of `PATH` `NX` (did you mean `NQ`?), expected `WQ` or `NQ`",
            ),
            (
                "%PATH(NQ:ORIGIN)%",
                "unknown argument of `PATH` `ORIGIN` (did you mean `ORIG`?), expected one of \
                 `ORIG`, `PATH`, `ORIG_OR_PATH`",
            ),
            (
                "%DYNAMIC_METADATA(a)%",
                "`%DYNAMIC_METADATA%` needs a namespace and a key: `namespace:key`",
            ),
            ("%DYNAMIC_METADATA(a:)%", "a name must not be empty or contain NUL"),
            (
                "%METADATA(ROUTES:a:b)%",
                "unknown kind of metadata `ROUTES` (did you mean `ROUTE`?), expected one of \
                 `DYNAMIC`, `ROUTE`, `CLUSTER`, `VIRTUAL_HOST`",
            ),
            (
                "%METADATA(UPSTREAM_HOST:a:b)%",
                "`%METADATA%` of UPSTREAM_HOST: a Wasm filter cannot see it",
            ),
            ("%FILTER_STATE(a)%", "`%FILTER_STATE%` is supported as `%FILTER_STATE(key:PLAIN)%`"),
            ("%HOSTNAME%", "`%HOSTNAME%` is not supported: a Wasm filter cannot see it"),
            (
                "%START_TIME(%s)%",
                "`%START_TIME%` is not supported: it differs from request to request, so it would \
                 limit nothing",
            ),
            (
                "%UPSTREAM_HOST%",
                "`%UPSTREAM_HOST%` is not supported: it has no value when a request arrives",
            ),
            ("%RESP(a)%", &format!("`%RESP%` {later}")),
            ("%BYTES_RECEIVED%", &format!("`%BYTES_RECEIVED%` {later}")),
        ];
        for (text, expected) in table {
            let found = compiled(text, Moment::Request).map(|format| shown(&format));
            assert_eq!(found, Err(expected.to_owned()), "for {text}");
        }
        let misspelt = compiled("%REQUESTED_SERVERNAME%", Moment::Request).unwrap_err();
        let meant =
            "unknown command `REQUESTED_SERVERNAME` (did you mean `REQUESTED_SERVER_NAME`?)";
        assert!(misspelt.starts_with(meant), "{misspelt}");
        let many = "%REQ(a)%".repeat(17);
        let message = "17 commands are too many (maximum 16)";
        assert_eq!(compiled(&many, Moment::Request), Err(message.to_owned()));
        assert!(compiled(&"%REQ(a)%".repeat(16), Moment::Request).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_compiled_or_refused(
            text in "(%|%%|REQ|METADATA|PATH|PROTOCOL|\\(|\\)|:|\\?|DYNAMIC|NQ|[a-z0-9]|\u{e9}| ){0,24}",
            any in ".{0,40}",
        ) {
            for text in [&text, &any] {
                for moment in [Moment::Request, Moment::End] {
                    if let Ok(format) = compiled(text, moment) {
                        prop_assert!(!format.0.is_empty());
                    }
                }
            }
        }
    }

    /// Envoy's list has 163 commands; each of them is supported or refused with a reason.
    #[test]
    fn every_command_of_envoy_is_known() {
        let names = super::super::commands::names();
        assert_eq!(names.len(), 163);
        let unknown = names.iter().filter(|name| {
            let error = compiled(&format!("%{name}(a:b)%"), Moment::End).err();
            error.is_some_and(|error| error.starts_with("unknown command"))
        });
        assert_eq!(unknown.count(), 0);
    }
}
