//! What configurations and requests are made of. Both draw from the same few names and values, so that
//! they often meet.

/// Headers that a matcher may read. Requests repeat none of them: Envoy joins the values with commas
/// there ("a repeated header in a matcher").
pub(super) const MATCHED_HEADERS: [&str; 8] =
    ["x-a", "X-B", "x-none", ":method", ":path", ":authority", "user-agent", "content-type"];

/// Headers that are values of descriptors.
pub(super) const HEADERS: [&str; 15] = [
    "x-a",
    "X-B",
    "x-many",
    "X-Many",
    "x-none",
    ":method",
    ":path",
    ":authority",
    ":scheme",
    "host",
    "user-agent",
    "content-type",
    "x-forwarded-for",
    "x-envoy-internal",
    "cookie",
];

/// Headers that requests repeat.
pub(super) const REPEATED_HEADERS: [&str; 2] = ["x-many", "cookie"];

/// Names of query parameters, decoded.
pub(super) const PARAMETERS: [&str; 7] = ["a", "b", "ab", "A", "x y", "é", "a=b"];

/// Parts of a query.
pub(super) const PIECES: [&str; 27] = [
    "a=1",
    "a",
    "a=",
    "a=ab",
    "a=AB",
    "b=x",
    "b=%61b",
    "b=aéb",
    "%61=2",
    "a=%41%2fb",
    "a=b=c",
    "a%3Db=1",
    "ab=%zz",
    "a=%",
    "a=%4",
    "a=%20+",
    "b=a+b",
    "a=%00x",
    "A=1",
    "A=%C3%A9",
    "x%20y=3",
    "x+y=4",
    "%C3%A9=u",
    "%c3%a9",
    "=x",
    "",
    "b=a?b",
];

/// Keys of descriptors.
pub(super) const DESCRIPTOR_KEYS: [&str; 5] = ["key", "k", "a_b", "another key", "é"];

/// Texts of matchers. The first one is empty.
pub(super) const TEXTS: [&str; 12] =
    ["", "a", "b", "ab", "AB", "aé", "é", "1", "/v1", "GET", "application/grpc", "test"];

/// Values of headers.
pub(super) const VALUES: [&[u8]; 34] = [
    b"",
    b"a",
    b"b",
    b"ab",
    b"AB",
    b"Ab",
    b"aab",
    b"abab",
    b"a b",
    b"a,b",
    b"a\tb",
    b"1",
    b"0",
    b"-5",
    b"+7",
    b"007",
    b"42",
    b"43",
    b"1.5",
    b"1e3",
    b"0x10",
    b"9223372036854775806",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    "é".as_bytes(),
    "aé".as_bytes(),
    "É".as_bytes(),
    "\u{20ac}\u{1f600}".as_bytes(),
    b"a%20b",
    b"\"a\"",
    b"a=b; c",
    b"/v1/a",
    b"test",
];

/// Repetitions of `ab` that make a value which is just not, just, and far too long ("long values").
pub(super) const LONG: [usize; 3] = [512, 513, 3000];

/// Bytes that are not UTF-8.
pub(super) const INVALID: [&[u8]; 4] = [b"\xff", b"a\xe9b", b"\xc3", b"ab\xf0\x9f\x98"];

/// Values of `x-forwarded-for`.
pub(super) const ADDRESSES: [&str; 16] = [
    "203.0.113.9",
    "10.0.0.1",
    "10.255.255.255",
    "127.0.0.1",
    "2001:db8::7",
    "2001:DB8:0:0::8",
    "::1",
    "::ffff:10.1.2.3",
    "fe80::1%eth0",
    "198.51.100.7, 10.0.0.1",
    "10.0.0.1,203.0.113.9",
    "10.0.0.1:8080",
    "[2001:db8::1]:80",
    "010.0.0.1",
    "unknown",
    "",
];

/// Regular expressions in the syntax that both have.
pub(super) const EXPRESSIONS: [&str; 36] = [
    "a",
    "ab",
    "a.*",
    ".*b",
    ".*",
    ".+",
    ".",
    "..",
    "[a-c]+",
    "[^a]*",
    "(a|ab)(b|)",
    "(?:ab)*",
    "(?i)ab",
    "a(?i:B)",
    "\\d+",
    "-?\\d{1,3}",
    "\\w+",
    "\\W*",
    "\\S+\\s?\\S*",
    "a\\b.*",
    "^a.*$",
    "\\Aab\\z",
    "é",
    "[à-ü]",
    "[à-ü]+b?",
    ".*\\xff",
    "[^\\x00-\\x7f]*",
    "\\C",
    "a?\\C{2}",
    "(?i)[A-É]+",
    "(?i)é",
    "[[:alpha:]]+",
    "\\x61{2}b?",
    "\\Qa b\\E",
    "/v[0-9]+(/.*)?",
    "GET|POST|application/grpc.*",
];

/// Formats of descriptors. Only those of one command may have a long value: ours shortens the value of a
/// command, Envoy nothing ("long values").
pub(super) const FORMATS: [&str; 20] = [
    "%REQ(x-a)%",
    "%REQ(X-B):2%",
    "%REQ(x-none?x-b)%",
    "%REQ(x-many)%",
    "%REQUEST_HEADER(cookie):3%",
    "%REQ(:method)%%%-%PROTOCOL%",
    "%REQ(x-none)%",
    "%PATH%",
    "%PATH(NQ:PATH)%",
    "<%PATH(WQ)%>",
    "%QUERY_PARAM(a)%",
    "%QUERY_PARAM(x y)%",
    "%DYNAMIC_METADATA(dyn:text)%",
    "%DYNAMIC_METADATA(dyn:deep:er):3%",
    "%DYNAMIC_METADATA(header:meta)%",
    "%METADATA(ROUTE:dyn:text)%",
    "%CLUSTER_METADATA(dyn:text)%",
    "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "%ROUTE_NAME%",
    "%UPSTREAM_CLUSTER%",
];

/// Values of `authorization`, with and without a token (JWT).
pub(super) const TOKENS: [&str; 7] = [
    "",
    "Bearer eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJlbXB0eSI6IiIsImRlZXAiOnsiZXIiOiJkb3duIn0sImxpc3QiOlsiYSJdfQ.c2ln",
    "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJiXHUwMGU5IiwiZGVlcCI6InRleHQifQ.c2ln",
    "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJlbXB0eSI6IiIsImRlZXAiOnsiZXIiOiJkb3duIn0sImxpc3QiOlsiYSJdfQ.c2ln",
    "Bearer x.y.z",
    "Bearer only",
    "Bearer eyJhbGciOiJSUzI1NiJ9.bm8.c2ln",
];
