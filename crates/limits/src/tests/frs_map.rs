//! `map.xml`: the rules of valid files, and one case per error.

use super::*;
use tidegate_core::{DailyReset, FirstHitWindow, Zone};

fn load_map(text: &str) -> Result<(Rules, Vec<String>), Vec<String>> {
    load_files(&[("map.xml", text)], SameDomain::Refuse)
}

fn first_hit(requests: u32, secs: u64) -> FirstHitWindow {
    FirstHitWindow::new(requests, Nanos::from_secs(secs)).unwrap()
}

/// Name, path and quota of each limit of a business.
fn limits(rules: &Rules, domain: &str, business: &str) -> Vec<(String, String, Quota)> {
    let words = [("business", business), ("key", "anybody")];
    let rule = rule(rules, domain, &words).expect("a rule");
    let limits = rule.limits().iter();
    limits.map(|l| (l.name.clone().unwrap(), l.path.clone(), l.quota.clone())).collect()
}

#[test]
fn a_business_is_a_rule_of_first_hit_windows() {
    let (rules, warnings) = load_map(
        "<?xml version='1.0'?>\n<map><business id='login' max='1000' interval='1h' \
         max-per-minute='60' max-per-day='5000'/>\n<!-- a name as it is --><business \
         id='a/b*' max-per-day='1'/></map>",
    )
    .unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(rules.domain_names(), ["frs"]);
    let limit = |path: &str, name: &str, window: FirstHitWindow| {
        (name.to_owned(), format!("frs/business={path}/key#{name}"), Quota::FirstHitWindow(window))
    };
    let login = [
        limit("login", "period", first_hit(1_000, 3_600)),
        limit("login", "minute", first_hit(60, 60)),
        limit("login", "day", first_hit(5_000, 86_400)),
    ];
    assert_eq!(limits(&rules, "frs", "login"), login);
    assert_eq!(limits(&rules, "frs", "a/b*"), [limit("a%2Fb*", "day", first_hit(1, 86_400))]);
    let other = [("business", "a/bc"), ("key", "k")];
    assert!(rule(&rules, "frs", &other).is_none());
}

#[test]
fn counters_are_reset_when_the_map_or_the_business_says() {
    let text = "<map domain='own' reset='03:00' timezone='+08:00'>\
                <business id='a' max-per-day='1'/>\
                <business id='b' max-per-day='1' reset='04:30'/>\
                <business id='c' max-per-day='1' timezone='UTC'/>\
                <business id='d' max-per-day='1' reset='off'/></map>";
    let (rules, _) = load_map(text).unwrap();
    let reset = |hours: f64, offset| {
        let time = Nanos::from_secs((hours * 3_600.0) as u64);
        Some(DailyReset::new(time, &Zone::fixed(offset)).unwrap())
    };
    let expected =
        [("a", reset(3.0, 28_800)), ("b", reset(4.5, 28_800)), ("c", reset(3.0, 0)), ("d", None)];
    for (business, expected) in expected {
        let (_, _, quota) = limits(&rules, "own", business).remove(0);
        assert!(matches!(quota, Quota::FirstHitWindow(_)), "{quota:?}");
        assert_eq!(quota.reset().cloned(), expected, "{business}");
    }
}

#[test]
fn an_interval_without_a_unit_is_in_seconds() {
    for (interval, secs) in [("60", 60), ("60s", 60), ("007", 7), ("1m", 60), ("86400", 86_400)] {
        let text = format!("<map><business id='a' max='5' interval='{interval}'/></map>");
        let (rules, _) = load_map(&text).unwrap();
        let [(name, _, quota)] = &limits(&rules, "frs", "a")[..] else { panic!("{interval}") };
        assert_eq!((&**name, quota), ("period", &Quota::FirstHitWindow(first_hit(5, secs))));
    }
    for (interval, message) in [
        ("0", "period 0 is not allowed (minimum 1ms)"),
        (
            "-60",
            "`interval`: expected seconds, or a number and ms, s, m, h, d or w, such as 1h, found \
             \"-60\"",
        ),
        (
            "1.5",
            "`interval`: expected seconds, or a number and ms, s, m, h, d or w, such as 1h, found \
             \"1.5\"",
        ),
        (
            "",
            "`interval`: expected seconds, or a number and ms, s, m, h, d or w, such as 1h, found \
             \"\"",
        ),
        ("316224001", "period 316224001s is too long (maximum 3660d)"),
        (
            "99999999999999999999",
            "`interval`: expected seconds, or a number and ms, s, m, h, d or w, such as 1h, found \
             \"99999999999999999999\"",
        ),
    ] {
        let text = format!("<map><business id='a' max='5' interval='{interval}'/></map>");
        assert_eq!(load_map(&text).unwrap_err(), [format!("map.xml:1:41: {message}")]);
    }
}

/// The defaults of srv.xml hold for maps without settings of their own, and for no other syntax.
#[test]
fn a_self_update_from_outside_is_for_maps_without_one() {
    use crate::{Defaults, Pipes, Source, daily_reset, load_source};
    let dir = directory(&[
        ("a.xml", "<map domain='a'><business id='b' max-per-day='1'/></map>"),
        ("c.xml", "<map domain='c' reset='05:00'><business id='b' max-per-day='1'/></map>"),
        ("d.xml", "<map domain='d'><business id='b' max-per-day='1' reset='off'/></map>"),
        (
            "e.yaml",
            "domain: e\ndescriptors: [{key: business, value: b, descriptors: [{key: key, \
             rate_limit: {algorithm: first_hit_window, name: day, unit: day, requests: 1}}]}]",
        ),
    ]);
    let update = daily_reset("03:00", "UTC").unwrap();
    let source = Source::read(dir.path(), Pipes::Refuse);
    let rules =
        load_source(&source, Defaults { self_update: Some(update.clone()), ..Defaults::default() })
            .unwrap()
            .rules;
    let five = daily_reset("05:00", "UTC").unwrap();
    for (domain, expected) in [("a", Some(update)), ("c", Some(five)), ("d", None), ("e", None)] {
        let words = [("business", "b"), ("key", "k")];
        let quota = &rule(&rules, domain, &words).unwrap().limits()[0].quota;
        assert!(matches!(quota, Quota::FirstHitWindow(_)), "no first-hit window in {domain}");
        assert_eq!(quota.reset(), expected.as_ref(), "{domain}");
    }
}

#[test]
fn every_error_has_a_position() {
    let text = "<map colour='red'>
  <business id='a' max='5'/>
  <business id='b' interval='1h'/>
  <business id='c'/>
  <business max-per-day='1'/>
  <business id='' max-per-day='1'/>
  <business id='d' max='-1' interval='1 h' max-per-minutes='5' max-per-day='4294967296'/>
  <business id='e' max='1' interval='0s'/>
  <business id='f' max-per-day='1' reset='3:00'/>
  <business id='g' max-per-day='1' timezone='UTC'/>
  <business id='h' max-per-day='1' reset='03:00' timezone='Europe/Brelin'/>
  <busyness/>
  <business id='i' max-per-day='1'/>
  <business id='i' max-per-day='2'/>
</map>";
    let known = "id, max, interval, max-per-minute, max-per-day, reset, timezone";
    let expected = [
        "1:6: unknown attribute \"colour\" of <map>; expected domain, reset, timezone".to_owned(),
        "2:3: `max` needs an `interval`, such as 1h".to_owned(),
        "3:3: `interval` needs a `max`".to_owned(),
        "4:3: a business needs a limit: `max` with `interval`, `max-per-minute` or `max-per-day`"
            .to_owned(),
        "5:3: a business needs an `id`".to_owned(),
        "6:17: `id`: expected a name, found \"\"".to_owned(),
        "7:25: `max`: expected a whole number from 0 to 4294967295, found \"-1\"".to_owned(),
        "7:39: `interval`: expected seconds, or a number and ms, s, m, h, d or w, such as 1h, \
         found \"1 h\""
            .to_owned(),
        format!(
            "7:44: unknown attribute \"max-per-minutes\" of <business> (did you mean \
             `max-per-minute`?); expected {known}"
        ),
        "7:77: `max-per-day`: expected a whole number from 0 to 4294967295, found \"4294967296\""
            .to_owned(),
        "8:38: period 0 is not allowed (minimum 1ms)".to_owned(),
        "9:43: `reset`: expected a time of day such as 03:00, or off, found \"3:00\"".to_owned(),
        "10:36: `timezone` has no effect without `reset`".to_owned(),
        "11:60: unknown timezone \"Europe/Brelin\" (did you mean `Europe/Berlin`?); expected UTC, \
         an \
         offset such as +08:00, or a name such as Europe/Berlin"
            .to_owned(),
        "12:3: unknown element \"busyness\"; expected <business>".to_owned(),
        "14:3: duplicate business \"i\"; the first is at 13:3".to_owned(),
    ];
    let expected: Vec<String> = expected.iter().map(|line| format!("map.xml:{line}")).collect();
    assert_eq!(load_map(text).unwrap_err(), expected);
}

#[test]
fn documents_that_are_no_map_are_refused_at_once() {
    for (text, expected) in [
        ("<srv/>", "1:1: unknown element \"srv\"; expected <map>"),
        (
            "<map>\n<business id='a' max-per-day='1'><x/>",
            "2:34: elements are nested more than 2 deep",
        ),
        ("<!DOCTYPE map><map/>", "1:1: a document type (DTD) is not allowed"),
        ("<map>\n  text</map>", "2:3: text is not expected here"),
        ("", "1:1: the document has no element"),
    ] {
        assert_eq!(load_map(text).unwrap_err(), [format!("map.xml:{expected}")], "for {text}");
    }
}

#[test]
fn a_domain_has_one_file_unless_they_are_merged() {
    let files = [
        ("a.xml", "<map><business id='a' max-per-day='1'/></map>"),
        (
            "b.yaml",
            "domain: frs\ndescriptors: [{key: business, value: b, descriptors: [{key: key, \
             rate_limit: {unit: day, requests: 1}}]}]",
        ),
        ("c.xml", "<map><business id='a' max-per-day='2'/></map>"),
        ("d.xml", "<map><business id='b' max-per-day='2'/></map>"),
    ];
    let errors = load_files(&files[..3], SameDomain::Refuse).unwrap_err();
    let first = |error: &String| error.split(" by ").next().unwrap_or_default().to_owned();
    let errors: Vec<String> = errors.iter().map(first).collect();
    let expected = [
        "b.yaml:1:9: domain \"frs\" is already defined",
        "c.xml:1:1: domain \"frs\" is already defined",
    ];
    assert_eq!(errors, expected);
    let (rules, _) = load_files(&files[..2], SameDomain::Merge).unwrap();
    assert_eq!(rules.limits().len(), 2);
    let errors = load_files(&files, SameDomain::Merge).unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("c.xml:1:6: duplicate business \"a\"; the first is at "));
    assert!(errors[1].starts_with("d.xml:1:6: duplicate business \"b\"; the first is at "));
}
