//! Strictness case by case, and robustness against arbitrary bytes.

use super::*;
use proptest::prelude::*;

/// The events of a document as text, for tables.
fn events(text: &str) -> Result<String, XmlError> {
    let mut document = Document::new(text, 3)?;
    let mut events = String::new();
    loop {
        match document.next_event()? {
            Event::Open(element) => {
                events += &format!("<{}", element.name);
                for attribute in &element.attributes {
                    events += &format!(" {}={:?}", attribute.name, attribute.value);
                }
                events.push('>');
            }
            Event::Close => events += "</>",
            Event::End => return Ok(events),
        }
    }
}

#[test]
fn elements_and_attributes_are_read() {
    for (text, expected) in [
        ("<a/>", "<a></>"),
        ("<?xml version='1.0'?><a></a >", "<a></>"),
        ("<?xml version=\"1.0\" encoding=\"utf-8\" standalone='yes' ?>\r\n<a/>\n", "<a></>"),
        ("<!-- why --><a b = 'x'\n c=\"y\" /><!-- so -->", "<a b=\"x\" c=\"y\"></>"),
        ("<a> <b/>\t<c>\n</c></a>", "<a><b></><c></></>"),
        ("<a b='&lt;&amp;&gt;&apos;&quot;&#65;&#x42;&#10;'/>", "<a b=\"<&>'\\\"AB\\n\"></>"),
        ("<a b='1\r\n2\t3\n4'/>", "<a b=\"1 2 3 4\"></>"),
        ("<a b='\"é日\"'/>", "<a b=\"\\\"é日\\\"\"></>"),
        ("<a b='>'/>", "<a b=\">\"></>"),
    ] {
        assert_eq!(events(text).as_deref(), Ok(expected), "for {text:?}");
    }
}

#[test]
fn refusals_have_kind_message_and_offset() {
    for (text, at, kind, message) in [
        ("", 0, ErrorKind::Malformed, "the document has no element"),
        (" <!-- nothing --> ", 18, ErrorKind::Malformed, "the document has no element"),
        ("<a>", 3, ErrorKind::Malformed, "the document ends inside an element"),
        (
            "<a/><b/>",
            4,
            ErrorKind::Malformed,
            "a document has a single root element; this is a second one",
        ),
        ("<a>  x</a>", 5, ErrorKind::Unexpected, "text is not expected here"),
        ("x<a/>", 0, ErrorKind::Unexpected, "text is not expected here"),
        ("<a>&amp;</a>", 3, ErrorKind::Unexpected, "text is not expected here"),
        ("<a><![CDATA[x]]></a>", 3, ErrorKind::Unexpected, "text is not expected here"),
        ("<!DOCTYPE a><a/>", 0, ErrorKind::Forbidden, "a document type (DTD) is not allowed"),
        ("<a/><?php x?>", 4, ErrorKind::Forbidden, "processing instructions are not allowed"),
        (
            " <?xml version='1.0'?><a/>",
            1,
            ErrorKind::Malformed,
            "an XML declaration is allowed at the very beginning only",
        ),
        (
            "<?xml encoding='utf-8'?><a/>",
            0,
            ErrorKind::Malformed,
            "an XML declaration must start with its version",
        ),
        (
            "<?xml version='1.1'?><a/>",
            15,
            ErrorKind::Forbidden,
            "\"version\" \"1.1\" of the XML declaration: expected version 1.0, UTF-8",
        ),
        (
            "<?xml version='1.0' encoding='utf-16'?><a/>",
            30,
            ErrorKind::Forbidden,
            "\"encoding\" \"utf-16\" of the XML declaration: expected version 1.0, UTF-8",
        ),
        (
            "<a><b><c><d/></c></b></a>",
            9,
            ErrorKind::TooMuch,
            "elements are nested more than 3 deep",
        ),
        ("<a b='1' b='2'/>", 9, ErrorKind::Malformed, "duplicate attribute \"b\""),
        ("<a b='1'c='2'/>", 8, ErrorKind::Malformed, "expected white space before an attribute"),
        ("<a b/>", 4, ErrorKind::Malformed, "attribute \"b\" has no value"),
        ("<a b=1/>", 5, ErrorKind::Malformed, "expected a value in quotes"),
        ("<a 1='x'/>", 3, ErrorKind::Malformed, "expected a name"),
        ("< a/>", 1, ErrorKind::Malformed, "expected a name"),
        ("<a b='<'/>", 6, ErrorKind::Malformed, "write < as &lt; here"),
        (
            "<a b='&copy;'/>",
            6,
            ErrorKind::Forbidden,
            "not one of &amp; &lt; &gt; &apos; &quot; and &#N;",
        ),
        (
            "<a b='x&'/>",
            7,
            ErrorKind::Forbidden,
            "not one of &amp; &lt; &gt; &apos; &quot; and &#N;",
        ),
        (
            "<a b='&#0;'/>",
            6,
            ErrorKind::Forbidden,
            "not one of &amp; &lt; &gt; &apos; &quot; and &#N;",
        ),
        (
            "<a b='&#xD800;'/>",
            6,
            ErrorKind::Forbidden,
            "not one of &amp; &lt; &gt; &apos; &quot; and &#N;",
        ),
        (
            "<a b='&#+65;'/>",
            6,
            ErrorKind::Forbidden,
            "not one of &amp; &lt; &gt; &apos; &quot; and &#N;",
        ),
        ("<a\0/>", 2, ErrorKind::Malformed, "U+0000 is not a character of XML"),
        ("<a b='\u{ffff}'/>", 6, ErrorKind::Malformed, "U+FFFF is not a character of XML"),
    ] {
        let expected = XmlError::new(at, kind, message);
        assert_eq!(events(text), Err(expected), "for {text:?}");
    }
    for text in
        ["<a></b>", "</a>", "<a", "<a b='", "<!-- x", "<!-- a -- b --><a/>", "<?xml", "<![CDATA["]
    {
        let error = events(text).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Malformed, "for {text:?}: {}", error.message);
    }
}

#[test]
fn attributes_are_bounded() {
    let of = |count: usize| {
        let attributes: String = (0..count).map(|index| format!(" a{index}='x'")).collect();
        format!("<a{attributes}/>")
    };
    assert!(events(&of(8)).is_ok());
    let error = events(&of(9)).unwrap_err();
    assert_eq!(error.message, "an element has more than 8 attributes");
    let long = |length: usize| format!("<a b='{}'/>", "x".repeat(length));
    assert!(events(&long(VALUE_BYTES_MAX)).is_ok());
    assert_eq!(events(&long(VALUE_BYTES_MAX + 1)).unwrap_err().kind, ErrorKind::TooMuch);
}

#[test]
fn positions_are_lines_and_columns() {
    let text = "a\nbé\n\nc";
    for (at, expected) in
        [(0, (1, 1)), (1, (1, 2)), (2, (2, 1)), (5, (2, 3)), (6, (3, 1)), (7, (4, 1))]
    {
        assert_eq!(position(text, at), expected, "at {at}");
    }
    assert_eq!(text_of(b"\xef\xbb\xbf<a/>"), Ok("<a/>"));
    assert_eq!(text_of(b"<a>\xff").unwrap_err(), 3);
}

fn text_of(bytes: &[u8]) -> Result<&str, usize> {
    text(bytes).map_err(|error| error.at)
}

proptest! {
    /// Any text gives a result, and the offset of an error lies within it.
    #[test]
    fn no_bytes_break_the_reader(
        words in prop::collection::vec(prop_oneof![
            Just("<a".to_owned()), Just("/>".to_owned()), Just("</a>".to_owned()),
            Just(" b='".to_owned()), Just("'".to_owned()), Just("&amp;".to_owned()),
            Just("&#x".to_owned()), Just("<!--".to_owned()), Just("-->".to_owned()),
            Just("<?xml version='1.0'?>".to_owned()), Just("<!DOCTYPE a [".to_owned()),
            Just("]]>".to_owned()), Just("é".to_owned()), Just("\u{feff}".to_owned()), any::<String>(),
        ], 0..30),
    ) {
        let text = words.concat();
        if let Err(error) = events(&text) {
            prop_assert!(error.at <= text.len());
            let _ = position(&text, error.at);
        }
    }

    /// Escaped values are read back unchanged.
    #[test]
    fn values_come_through(value in any::<String>()) {
        prop_assume!(value.len() < 1_000 && value.chars().all(is_character));
        let mut out = b"<a b=\"".to_vec();
        escape(&value, &mut out);
        out.extend_from_slice(b"\"/>");
        let text = std::str::from_utf8(&out).unwrap();
        let mut document = Document::new(text, 1).unwrap();
        let Event::Open(element) = document.next_event().unwrap() else { panic!("no element") };
        prop_assert_eq!(&*element.attributes[0].value, &*value);
    }
}

/// Names of limits come from files, which may have any character.
#[test]
fn control_characters_do_not_make_an_answer_malformed() {
    let mut out = Vec::new();
    escape("a\u{1}\u{1f}\t<é", &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "a??&#9;&lt;é");
}
