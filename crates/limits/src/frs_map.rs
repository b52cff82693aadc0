//! Reads `map.xml`, the businesses of an FRS and their limits, into rules like those of any limits file.
//!
//! A `<business>` becomes the descriptor `business=<id>`, `key=<any>` with first-hit windows named
//! `period`, `minute` and `day`. As in YAML, all errors are reported with their positions; malformed XML
//! ends at its first error.

use crate::compiled::{Limit, Matcher, Rule, RuleKind};
use crate::diagnostic::{Diagnostic, Position};
use crate::duration;
use crate::loader::Loader;
use crate::path::escaped;
use crate::text::{listed, quoted, suggestion, whole_number};
use crate::time_of_day;
use crate::zone::Zones;
use std::path::Path;
use std::sync::Arc;
use tidegate_core::{
    DailyReset, DeniedHits, Enforcement, FirstHitWindow, Nanos, Quota, QuotaError,
};
use tidegate_xml::{self as xml, Attribute, Document, Element, Event, XmlError};

const DOMAIN: &str = "frs";
const MINUTE: Nanos = Nanos::from_secs(60);
const DAY: Nanos = Nanos::from_secs(86_400);
const OF_MAP: [&str; 3] = ["domain", "reset", "timezone"];
const OF_BUSINESS: [&str; 7] =
    ["id", "max", "interval", "max-per-minute", "max-per-day", "reset", "timezone"];

/// Whether this module reads the file.
pub(super) fn is_map(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "xml")
}

/// The parts of a daily reset. An element inherits those that it does not set.
#[derive(Debug, Clone, Default)]
struct ResetSettings {
    time: Option<Nanos>,
    zone: Option<String>,
    reset: Option<DailyReset>,
}

/// The state of a file while it is read.
struct MapReader<'a> {
    text: &'a str,
    file: Arc<Path>,
    errors: Vec<Diagnostic>,
    /// The current element: its offset in the text, and its position.
    at: usize,
    position: Position,
}

impl MapReader<'_> {
    /// Moves on to the element at byte `at`.
    fn advance(&mut self, at: usize) {
        self.position = self.position_of(at);
        self.at = at;
    }

    /// Counted from the current element, so that each error of a long file costs no more than the first.
    fn position_of(&self, at: usize) -> Position {
        let between = self.text.get(self.at..at).unwrap_or_default();
        let (line, column) = self.position;
        match between.rsplit_once('\n') {
            None => (line, column + between.chars().count() as u64),
            Some((lines, last)) => {
                let lines = lines.matches('\n').count() as u64 + 1;
                (line + lines, last.chars().count() as u64 + 1)
            }
        }
    }

    fn error(&mut self, at: usize, message: impl Into<String>) {
        self.errors.push(Diagnostic::new(&self.file, self.position_of(at), message));
    }

    fn unknown(&mut self, attribute: &Attribute<'_>, element: &str, known: &[&str]) {
        let meant = suggestion(attribute.name, known);
        let (name, known) = (quoted(attribute.name), known.join(", "));
        let message = format!("unknown attribute {name} of <{element}>{meant}; expected {known}");
        self.error(attribute.at, message);
    }

    fn wrong(&mut self, attribute: &Attribute<'_>, expected: &str) {
        let (name, value) = (attribute.name, quoted(&attribute.value));
        self.error(attribute.value_at, format!("`{name}`: expected {expected}, found {value}"));
    }

    fn number(&mut self, attribute: &Attribute<'_>) -> Option<u32> {
        let number = whole_number(&attribute.value);
        if number.is_none() {
            self.wrong(attribute, "a whole number from 0 to 4294967295");
        }
        number
    }
}

pub(super) fn read_file(loader: &mut Loader, file: &Path, text: &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (file, position) = (file.into(), (1, 1));
    let mut map = MapReader { text, file, errors: Vec::new(), at: 0, position };
    if let Err(mistake) = read_map(loader, &mut map) {
        // The parser may be anywhere in the text.
        let position = xml::position(text, mistake.at);
        map.errors.push(Diagnostic::new(&map.file, position, mistake.message));
    }
    map.errors.sort_by_key(|error| error.position);
    loader.errors.append(&mut map.errors);
}

fn read_map(loader: &mut Loader, map: &mut MapReader<'_>) -> Result<(), XmlError> {
    let mut document = Document::new(map.text, 2)?;
    // The parser refuses a second root.
    while let Event::Open(root) = document.next_event()? {
        map.advance(root.at);
        if root.name != "map" {
            return Err(root.refuse("<map>"));
        }
        let mut domain = DOMAIN.to_owned();
        let default = loader.defaults.self_update.clone();
        let mut settings = ResetSettings { reset: default, ..ResetSettings::default() };
        for attribute in &root.attributes {
            match attribute.name {
                "domain" if attribute.value.is_empty() => map.wrong(attribute, "a name"),
                "domain" => domain = attribute.value.clone().into_owned(),
                "reset" | "timezone" => {}
                _ => map.unknown(attribute, "map", &OF_MAP),
            }
        }
        read_reset(&root, &mut settings, &mut loader.cross_file.zones, map);
        let claimed = loader.claim_domain(&domain, &map.file).map_err(|message| {
            map.error(root.attribute("domain").map_or(root.at, |domain| domain.value_at), message);
        });
        while let Event::Open(element) = document.next_event()? {
            map.advance(element.at);
            read_business(loader, map, &element, &settings, claimed.ok().map(|()| domain.as_str()));
            if let Event::Open(inner) = document.next_event()? {
                return Err(inner.refuse("nothing in <business>"));
            }
        }
    }
    Ok(())
}

/// Reads `reset` and `timezone` of an element.
fn read_reset(
    element: &Element<'_>,
    settings: &mut ResetSettings,
    zones: &mut Zones,
    map: &mut MapReader<'_>,
) {
    let (reset, timezone) = (element.attribute("reset"), element.attribute("timezone"));
    if let Some(timezone) = timezone {
        settings.zone = Some(timezone.value.clone().into_owned());
    }
    match reset {
        Some(reset) if reset.value == "off" => {
            (settings.time, settings.reset) = (None, None);
            return;
        }
        Some(reset) => match time_of_day::parse(&reset.value) {
            Some(time) => settings.time = Some(time),
            None => map.wrong(reset, "a time of day such as 03:00, or off"),
        },
        None => {}
    }
    let Some(time) = settings.time else {
        if let Some(timezone) = timezone.filter(|_| reset.is_none()) {
            map.error(timezone.at, "`timezone` has no effect without `reset`");
        }
        return;
    };
    let zone = settings.zone.as_deref().unwrap_or("UTC");
    match zones.daily(zone, time) {
        Ok(reset) => settings.reset = Some(reset),
        Err(message) => {
            map.error(timezone.map_or(element.at, |timezone| timezone.value_at), message);
        }
    }
}

#[derive(Default)]
struct Numbers {
    id: Option<String>,
    max: Option<u32>,
    interval: Option<(Nanos, usize)>,
    per_minute: Option<u32>,
    per_day: Option<u32>,
}

/// Reads a business and inserts its rule into `domain`. Without a domain, it is read only to find its
/// errors.
fn read_business(
    loader: &mut Loader,
    map: &mut MapReader<'_>,
    element: &Element<'_>,
    settings: &ResetSettings,
    domain: Option<&str>,
) {
    if element.name != "business" {
        map.error(element.at, element.refuse("<business>").message);
        return;
    }
    let before = map.errors.len();
    let numbers = read_numbers(element, map);
    let mut settings = settings.clone();
    read_reset(element, &mut settings, &mut loader.cross_file.zones, map);
    let has = |name| element.attribute(name).is_some();
    match (has("max"), has("interval")) {
        (true, false) => map.error(element.at, "`max` needs an `interval`, such as 1h"),
        (false, true) => map.error(element.at, "`interval` needs a `max`"),
        (false, false) if !has("max-per-minute") && !has("max-per-day") => {
            let known =
                listed("or", &["`max` with `interval`", "`max-per-minute`", "`max-per-day`"]);
            map.error(element.at, format!("a business needs a limit: {known}"));
        }
        _ => {}
    }
    if !has("id") {
        map.error(element.at, "a business needs an `id`");
    }
    let path = format!(
        "{}/business={}",
        escaped(domain.unwrap_or_default()),
        escaped(numbers.id.as_deref().unwrap_or_default())
    );
    let limits = limits(&numbers, &settings, &path, map);
    let (Some(id), Some(domain)) = (numbers.id, domain) else { return };
    if map.errors.len() > before {
        return;
    }
    insert(loader, map, domain, &id, &path, limits);
}

fn read_numbers(element: &Element<'_>, map: &mut MapReader<'_>) -> Numbers {
    let mut numbers = Numbers::default();
    for attribute in &element.attributes {
        match attribute.name {
            "id" if attribute.value.is_empty() => map.wrong(attribute, "a name"),
            "id" => numbers.id = Some(attribute.value.clone().into_owned()),
            "max" => numbers.max = map.number(attribute),
            "max-per-minute" => numbers.per_minute = map.number(attribute),
            "max-per-day" => numbers.per_day = map.number(attribute),
            "interval" => match interval(&attribute.value) {
                Some(interval) => numbers.interval = Some((interval, attribute.value_at)),
                None => {
                    let units = listed("or", &["ms", "s", "m", "h", "d", "w"]);
                    let expected = format!("seconds, or a number and {units}, such as 1h");
                    map.wrong(attribute, &expected);
                }
            },
            "reset" | "timezone" => {}
            _ => map.unknown(attribute, "business", &OF_BUSINESS),
        }
    }
    numbers
}

/// A duration, or a bare number of seconds.
fn interval(text: &str) -> Option<Nanos> {
    let is_bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_bare { duration::parse(&format!("{text}s")) } else { duration::parse(text) }
}

fn limits(
    numbers: &Numbers,
    settings: &ResetSettings,
    path: &str,
    map: &mut MapReader<'_>,
) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut add = |name: &str, requests: u32, period| -> Result<(), QuotaError> {
        let window = FirstHitWindow::new(requests, period)?;
        let window = match &settings.reset {
            Some(reset) => window.with_reset(reset.clone()),
            None => window,
        };
        limits.push(Limit {
            name: Some(name.to_owned()),
            path: format!("{path}/key#{name}"),
            label: name.to_owned(),
            quota: Quota::FirstHitWindow(window),
            timezone: None,
            denied: DeniedHits::Ignore,
            replaces: Vec::new(),
        });
        Ok(())
    };
    if let (Some(max), Some((interval, at))) = (numbers.max, numbers.interval)
        && let Err(error) = add("period", max, interval)
    {
        map.error(at, error.to_string());
    }
    // A minute and a day are valid periods.
    let _ = numbers.per_minute.map(|max| add("minute", max, MINUTE));
    let _ = numbers.per_day.map(|max| add("day", max, DAY));
    limits
}

fn insert(
    loader: &mut Loader,
    map: &mut MapReader<'_>,
    domain: &str,
    id: &str,
    path: &str,
    limits: Vec<Limit>,
) {
    let node = loader.rules.root_mut(domain);
    let inserted = node.insert("business", &Matcher::Exact(id.to_owned()), None);
    let below = inserted.and_then(|node| node.insert("key", &Matcher::Any, None));
    let Ok(node) = below else {
        let first = loader.cross_file.first_definition(path, &map.file);
        let first = first.map_or_else(String::new, |at| format!("; the first is at {at}"));
        map.error(map.at, format!("duplicate business {}{first}", quoted(id)));
        return;
    };
    let names = loader.cross_file.names.entry(domain.into()).or_default();
    names.extend(limits.iter().filter_map(|limit| limit.name.clone()));
    node.set_rule(Rule {
        path: format!("{path}/key"),
        kind: RuleKind::Limits(limits),
        enforcement: Enforcement::Enforce,
        metric_values: Vec::new(),
        metadata: None,
    });
    for path in [path.to_owned(), format!("{path}/key")] {
        loader.cross_file.positions.insert(path, (map.file.clone(), map.position));
    }
}
