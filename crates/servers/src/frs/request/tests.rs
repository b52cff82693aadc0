//! Bodies: the accepted ones, and the refused ones with the position of the mistake.

use super::*;
use proptest::prelude::*;

const MANY: usize = ITEMS_MAX;

#[test]
fn items_are_read() {
    let text = "<frs><item business='login' key='user-17' hits='3'/>\n<item key='a&amp;b' business='x'></item></frs>";
    let items = read(Command::Update, text).unwrap().items;
    let found: Vec<_> = items.iter().map(|i| (&*i.business, &*i.key, i.hits.get())).collect();
    assert_eq!(found, [("login", "user-17", 3), ("x", "a&b", 1)]);
    let text = "<frs><item business='b' key='k'><window name='day' count='5' start='1763766000.25' \
                end='1763766001'/><window name='minute'/></item></frs>";
    let items = read(Command::Create, text).unwrap().items;
    let at = |millis: u64| Some(Timestamp::from_nanos(millis * 1_000_000));
    let (start, end) = (at(1_763_766_000_250), at(1_763_766_001_000));
    let day = WindowChange { name: "day".into(), count: Some(5), start, end };
    let minute = WindowChange { name: "minute".into(), count: None, start: None, end: None };
    assert_eq!(items[0].windows.as_slice(), [day, minute]);
}

#[test]
fn a_body_says_how_its_items_are_decided() {
    for (attributes, expected) in [
        ("", Grouping::Each),
        (" items='each'", Grouping::Each),
        (" items='all-or-none'", Grouping::AllOrNone),
    ] {
        let text = format!("<frs{attributes}><item business='b' key='k'/></frs>");
        for command in [Command::Query, Command::Acquire] {
            assert_eq!(read(command, &text).unwrap().grouping, expected, "{text}");
        }
    }
}

#[test]
fn commands_are_known_in_any_case() {
    for command in Command::ALL {
        assert_eq!(Command::from_name(command.name().to_uppercase().as_bytes()), Some(command));
        assert_eq!(Command::from_name(command.name().to_lowercase().as_bytes()), Some(command));
    }
    for unknown in ["", "Queries", "Update Node", "UpdateNode", " Query"] {
        assert_eq!(Command::from_name(unknown.as_bytes()), None, "{unknown:?}");
    }
}

#[track_caller]
fn check(command: Command, text: &str, expected: &str) {
    let mistake = read(command, text).unwrap_err();
    let (line, column) = xml::position(text, mistake.at);
    assert_eq!(format!("{line}:{column}: {}", mistake.message), expected, "for {text}");
}

#[test]
fn mistakes_are_reported_with_their_position() {
    use Command::{Create, Query, Update, UpdateNode};
    for (command, text, expected) in [
        (Query, "<frs/>", "1:1: <frs> needs at least one <item>"),
        (Query, "<fsr/>", "1:1: unknown element \"fsr\"; expected <frs>"),
        (Query, "<frs a='b'/>", "1:6: unknown attribute \"a\" of <frs>; expected items"),
        (Update, "<frs items='each'/>", "1:6: unknown attribute \"items\" of <frs>; expected none"),
        (Query, "<frs items='all'/>", "1:13: items \"all\": expected each or all-or-none"),
        (Query, "<frs><itme/></frs>", "1:6: unknown element \"itme\"; expected <item>"),
        (Query, "<frs>\n <item key='k'/></frs>", "2:2: <item> needs a business"),
        (Query, "<frs><item business='b'/></frs>", "1:6: <item> needs a key"),
        (
            Query,
            "<frs><item business='b' key='k' hits='1'/></frs>",
            "1:33: unknown attribute \"hits\" of <item>; expected business, key",
        ),
        (
            Query,
            "<frs><item business='' key='k'/></frs>",
            "1:22: business \"\": expected some text",
        ),
        (
            Query,
            "<frs><item business='b' key='k'><window name='day'/></item></frs>",
            "1:33: unknown element \"window\"; expected nothing in the <item> of a Query",
        ),
        (
            Create,
            "<frs><item business='b' key='k'><window count='1'/></item></frs>",
            "1:33: <window> needs a name",
        ),
        (
            Create,
            "<frs><item business='b' key='k'><window name='a'/><window name='a'/></item></frs>",
            "1:51: window \"a\" comes twice",
        ),
        (
            Create,
            "<frs><item business='b' key='k'><window name='a' count='-1'/></item></frs>",
            "1:57: count \"-1\": expected a whole number from 0 to 4294967295",
        ),
        (
            Create,
            "<frs><item business='b' key='k'><window name='a' start='now'/></item></frs>",
            "1:57: start \"now\": expected a time as seconds since 1970-01-01 00:00 UTC, such as \
             1763766000.25",
        ),
        (
            Create,
            "<frs><item business='b' key='k'><window name='a'><x/></window></item></frs>",
            "1:50: elements are nested more than 3 deep",
        ),
        (
            UpdateNode,
            "<frs><item business='b' key='k'/></frs>",
            "1:6: an <item> of an Update-Node needs at least one <window>",
        ),
        (
            UpdateNode,
            "<frs><item business='b' key='k'><window name='a'/></item></frs>",
            "1:33: <window> changes nothing; give it a count, a start or an end",
        ),
    ] {
        check(command, text, expected);
    }
    for hits in ["0", "-1", "+1", "1.5", "4294967296", "99999999999999999999", "", " 1"] {
        let text = format!("<frs><item business='b' key='k' hits='{hits}'/></frs>");
        let expected = format!("1:39: hits {hits:?}: expected a whole number from 1 to 4294967295");
        check(Update, &text, &expected);
    }
}

#[test]
fn bodies_are_bounded() {
    let of = |count: usize| format!("<frs>{}</frs>", "<item business='b' key='k'/>".repeat(count));
    assert_eq!(read(Command::Query, &of(MANY)).unwrap().items.len(), MANY);
    let mistake = read(Command::Query, &of(MANY + 1)).unwrap_err();
    assert_eq!(mistake.message, "a body has at most 256 items; send more bodies");
    let key =
        |length: usize| format!("<frs><item business='b' key='{}'/></frs>", "k".repeat(length));
    assert!(read(Command::Query, &key(1_024)).is_ok());
    assert_eq!(read(Command::Query, &key(1_025)).unwrap_err().kind, ErrorKind::TooMuch);
}

#[test]
fn times_are_seconds_with_a_fraction() {
    let nanos = |text| time(text).map(Timestamp::as_nanos);
    assert_eq!(nanos("0"), Some(0));
    assert_eq!(nanos("1763766000.000000001"), Some(1_763_766_000_000_000_001));
    assert_eq!(nanos("4294967295.9"), Some(4_294_967_295_900_000_000));
    for wrong in ["", ".", "1.", ".5", "-1", "1e3", "4294967296", "1.0000000001", "1 "] {
        assert_eq!(nanos(wrong), None, "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_reader(
        words in prop::collection::vec(prop_oneof![
            4 => Just("<frs>".to_owned()), 2 => Just("<frs items='all-or-none'>".to_owned()),
            4 => Just("<item business='b' key='k'".to_owned()),
            4 => Just("/>".to_owned()), 4 => Just(">".to_owned()), 2 => Just("</item>".to_owned()),
            2 => Just("</frs>".to_owned()), 2 => Just("<window name='day' count='3'/>".to_owned()),
            1 => Just(" hits='2'".to_owned()), 1 => any::<String>(),
        ], 0..20),
    ) {
        let text = words.concat();
        for command in Command::ALL {
            match read(command, &text) {
                Ok(body) => prop_assert!((1..=ITEMS_MAX).contains(&body.items.len())),
                Err(mistake) => prop_assert!(mistake.at <= text.len()),
            }
        }
    }
}
