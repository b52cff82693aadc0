//! The syntax of RE2, which Envoy's `safe_regex` uses.
//!
//! An expression that parses here is valid in Envoy, with the same meaning. Envoy runs RE2 on bytes:
//! each byte of an expression or a value is a character of its own. Refuses what RE2 refuses
//! (lookaround, back-references, stacked repetitions), and classes by Unicode property (`\p`).

use super::class::{Set, byte};
use regex_syntax::hir::{Dot, Hir, Look, Repetition};

/// The most repetitions that nested counts may multiply to, as in RE2.
const REPEAT_MAX: u32 = 1000;
/// The deepest nesting of groups: parsing and compiling recurse.
const DEPTH_MAX: u32 = 100;

pub(super) fn parse(pattern: &str) -> Result<Hir, String> {
    // A character for each byte.
    let bytes: String = pattern.bytes().map(char::from).collect();
    let mut parser = Parser { rest: &bytes, depth: 0 };
    let flags = Flags { ignore_case: false, multi_line: false, dot_is_all: false };
    let parsed = parser.alternation(flags).and_then(|part| match parser.rest {
        "" => Ok(part.hir),
        _ => Err("unmatched `)`".to_owned()),
    });
    parsed.map_err(|message| {
        let at = pattern.len().saturating_sub(parser.rest.chars().count());
        format!("{message} (at byte {at})")
    })
}

/// A parsed part of an expression.
struct Part {
    hir: Hir,
    /// The product of its nested counted repetitions.
    repeats: u32,
}

impl Part {
    fn new(hir: Hir) -> Self {
        Part { hir, repeats: 1 }
    }
}

#[derive(Clone, Copy)]
struct Flags {
    ignore_case: bool,
    multi_line: bool,
    dot_is_all: bool,
}

/// The bounds of a repetition.
struct Count {
    min: u32,
    max: Option<u32>,
}

struct Parser<'a> {
    rest: &'a str,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    /// The text before `end`; consumes both.
    fn until(&mut self, end: &str) -> Option<&'a str> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text)
    }

    /// Parses up to the `)` of the surrounding group, or the end. `flags` may change inside, for
    /// the rest of the group.
    fn alternation(&mut self, mut flags: Flags) -> Result<Part, String> {
        let (mut branches, mut branch) = (Vec::new(), Vec::new());
        let mut repeats = 1;
        while !self.rest.is_empty() && !self.rest.starts_with(')') {
            if self.eat("|") {
                branches.push(Hir::concat(std::mem::take(&mut branch)));
                continue;
            }
            let part = match self.quoted(flags, &mut branch)? {
                Some(part) => Some(part),
                None => self.atom(&mut flags)?,
            };
            // None for a group of flags only.
            let Some(part) = part else { continue };
            let part = self.repeated(part)?;
            repeats = repeats.max(part.repeats);
            branch.push(part.hir);
        }
        branches.push(Hir::concat(branch));
        Ok(Part { hir: Hir::alternation(branches), repeats })
    }

    /// `\Q...\E`; a repetition after it applies to the last character.
    fn quoted(&mut self, flags: Flags, branch: &mut Vec<Hir>) -> Result<Option<Part>, String> {
        if !self.eat("\\Q") {
            return Ok(None);
        }
        let text = match self.until("\\E") {
            Some(text) => text,
            None => std::mem::take(&mut self.rest),
        };
        let mut chars = text.chars();
        let last = chars.next_back();
        for char in chars {
            branch.push(literal(char, flags));
        }
        let last = last.map_or(Hir::empty(), |last| literal(last, flags));
        Ok(Some(Part::new(last)))
    }

    /// One element of an expression; none for a group of flags only.
    fn atom(&mut self, flags: &mut Flags) -> Result<Option<Part>, String> {
        if self.rest.starts_with('\\') {
            return self.escaped(*flags).map(|hir| Some(Part::new(hir)));
        }
        if self.count()?.is_some() {
            return Err("nothing to repeat".to_owned());
        }
        let hir = match self.next() {
            Some('(') => return self.group(flags),
            Some('[') => self.class(*flags)?,
            Some('.') if flags.dot_is_all => Hir::dot(Dot::AnyByte),
            Some('.') => Hir::dot(Dot::AnyByteExceptLF),
            Some('^') if flags.multi_line => Hir::look(Look::StartLF),
            Some('^') => Hir::look(Look::Start),
            Some('$') if flags.multi_line => Hir::look(Look::EndLF),
            Some('$') => Hir::look(Look::End),
            Some(char) => literal(char, *flags),
            None => Hir::empty(),
        };
        Ok(Some(Part::new(hir)))
    }

    /// After `(`.
    fn group(&mut self, around: &mut Flags) -> Result<Option<Part>, String> {
        let mut flags = *around;
        if self.eat("?P<")
            || (self.rest.starts_with("?<") && !self.is_lookbehind() && self.eat("?<"))
        {
            let name = self.until(">").unwrap_or_default();
            let is_of_names = |char: char| char == '_' || char.is_ascii_alphanumeric();
            if name.is_empty() || !name.chars().all(is_of_names) {
                return Err("invalid group name".to_owned());
            }
        } else if self.eat("?") && self.flags(&mut flags)? {
            *around = flags;
            return Ok(None);
        }
        self.depth = self.depth.saturating_add(1);
        if self.depth > DEPTH_MAX {
            return Err(format!("groups are nested too deep (maximum {DEPTH_MAX})"));
        }
        let part = self.alternation(flags)?;
        self.depth = self.depth.saturating_sub(1);
        match self.eat(")") {
            true => Ok(Some(part)),
            false => Err("unmatched `(`".to_owned()),
        }
    }

    fn is_lookbehind(&self) -> bool {
        self.rest.starts_with("?<=") || self.rest.starts_with("?<!")
    }

    /// After `(?`: true if the group has only flags.
    fn flags(&mut self, flags: &mut Flags) -> Result<bool, String> {
        let (mut on, mut any) = (true, true);
        loop {
            match self.next() {
                Some('i') => flags.ignore_case = on,
                Some('m') => flags.multi_line = on,
                Some('s') => flags.dot_is_all = on,
                // Greediness decides which match is preferred, not whether there is one.
                Some('U') => {}
                Some('-') if on => {
                    (on, any) = (false, false);
                    continue;
                }
                Some(end @ (':' | ')')) if any => return Ok(end == ')'),
                Some('=' | '!' | '<') => {
                    return Err(
                        "lookahead and lookbehind are not supported, nor in Envoy".to_owned()
                    );
                }
                _ => return Err("expected flags of a group, some of `imsU-`".to_owned()),
            }
            any = true;
        }
    }

    /// The part with the repetition that follows it.
    fn repeated(&mut self, part: Part) -> Result<Part, String> {
        let counted = self.rest.starts_with('{');
        let Some(count) = self.count()? else { return Ok(part) };
        // Greediness does not matter here.
        self.eat("?");
        if self.count()?.is_some() {
            return Err("a repetition of a repetition needs a group".to_owned());
        }
        let mut repeats = part.repeats;
        if counted {
            repeats = repeats.saturating_mul(count.max.unwrap_or(count.min).max(1));
            if repeats > REPEAT_MAX || count.min > REPEAT_MAX {
                return Err(format!("too many repetitions (maximum {REPEAT_MAX} in all)"));
            }
        }
        let (min, max, sub) = (count.min, count.max, Box::new(part.hir));
        Ok(Part { hir: Hir::repetition(Repetition { min, max, greedy: true, sub }), repeats })
    }

    /// A repetition, if there is one. Braces that are not a repetition are literal.
    fn count(&mut self) -> Result<Option<Count>, String> {
        for (text, min, max) in [("*", 0, None), ("+", 1, None), ("?", 0, Some(1))] {
            if self.eat(text) {
                return Ok(Some(Count { min, max }));
            }
        }
        let braces = self.rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let count = braces.and_then(|(text, rest)| Some((counts(text)?, rest)));
        let Some((count, rest)) = count else { return Ok(None) };
        self.rest = rest;
        if count.max.is_some_and(|max| max < count.min) {
            return Err("the maximum of a repetition is below its minimum".to_owned());
        }
        Ok(Some(count))
    }

    /// At a backslash outside of a class.
    fn escaped(&mut self, flags: Flags) -> Result<Hir, String> {
        for (text, hir) in [
            ("\\A", Hir::look(Look::Start)),
            ("\\z", Hir::look(Look::End)),
            ("\\b", Hir::look(Look::WordAscii)),
            ("\\B", Hir::look(Look::WordAsciiNegate)),
            ("\\C", Hir::dot(Dot::AnyByte)),
        ] {
            if self.eat(text) {
                return Ok(hir);
            }
        }
        if let Some(set) = self.perl_class(flags)? {
            return Ok(set.into_hir());
        }
        Ok(literal(self.escaped_char()?, flags))
    }

    /// `\d` and similar classes, which are ASCII.
    fn perl_class(&mut self, flags: Flags) -> Result<Option<Set>, String> {
        for (positive, negative, set) in
            [("\\d", "\\D", Set::DIGIT), ("\\s", "\\S", Set::PERL_SPACE), ("\\w", "\\W", Set::WORD)]
        {
            let negated = self.rest.starts_with(negative);
            if self.eat(positive) || self.eat(negative) {
                return Ok(Some(Set::of(set).folded(flags.ignore_case).negated(negated)));
            }
        }
        if self.rest.starts_with("\\p") || self.rest.starts_with("\\P") {
            return Err("classes of Unicode properties (`\\p`) are not supported".to_owned());
        }
        Ok(None)
    }

    /// At a backslash that stands for one character.
    fn escaped_char(&mut self) -> Result<char, String> {
        self.eat("\\");
        let bad = || "not an escape of RE2".to_owned();
        let number = |digits: &str, radix| {
            u8::from_str_radix(digits, radix).map(char::from).map_err(|_| bad())
        };
        let octal = |char: char| char.is_digit(8);
        Ok(match self.next() {
            Some('a') => '\x07',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some('x') => {
                let digits = match self.eat("{") {
                    true => self.until("}").unwrap_or_default(),
                    false => self.take(2),
                };
                // `from_str_radix` also accepts a sign.
                match digits.starts_with(|char: char| char.is_ascii_hexdigit()) {
                    true => number(digits, 16)?,
                    false => return Err(bad()),
                }
            }
            // One digit other than 0 would be a back-reference.
            Some(first) if octal(first) && (first == '0' || self.rest.starts_with(octal)) => {
                let more = self.rest.chars().take(2).take_while(|char| octal(*char)).count();
                let digits = format!("{first}{}", self.take(more));
                number(&digits, 8)?
            }
            Some('1'..='9') => {
                return Err("back-references are not supported, nor in Envoy".to_owned());
            }
            Some(char) if char.is_ascii() && !char.is_ascii_alphanumeric() && char != '_' => char,
            _ => return Err(bad()),
        })
    }

    /// The next `bytes` bytes if they end at a character boundary, else nothing.
    fn take(&mut self, bytes: usize) -> &'a str {
        let Some((text, rest)) = self.rest.split_at_checked(bytes) else { return "" };
        self.rest = rest;
        text
    }

    fn class(&mut self, flags: Flags) -> Result<Hir, String> {
        let negated = self.eat("^");
        let mut set = Set::empty();
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if let Some(posix) = self.posix_class(flags)? {
                set.add(&posix);
            } else if let Some(perl) = self.perl_class(flags)? {
                set.add(&perl);
            } else {
                let start = self.class_char()?;
                let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
                let end = match is_range && self.eat("-") {
                    true => self.class_char()?,
                    false => start,
                };
                if end < start {
                    return Err(format!("the range from {start:?} to {end:?} is empty"));
                }
                set.add(&Set::range(start, end).folded(flags.ignore_case));
            }
        }
        self.eat("]");
        Ok(set.negated(negated).into_hir())
    }

    fn class_char(&mut self) -> Result<char, String> {
        if self.rest.starts_with('\\') {
            return self.escaped_char();
        }
        self.next().ok_or_else(|| "unmatched `[`".to_owned())
    }

    /// `[:alpha:]` or `[:^alpha:]`.
    fn posix_class(&mut self, flags: Flags) -> Result<Option<Set>, String> {
        let Some((name, rest)) =
            self.rest.strip_prefix("[:").and_then(|rest| rest.split_once(":]"))
        else {
            return Ok(None);
        };
        let (negated, name) = name.strip_prefix('^').map_or((false, name), |name| (true, name));
        let set = Set::named(name).ok_or_else(|| format!("unknown class `{name}`"))?;
        self.rest = rest;
        Ok(Some(set.folded(flags.ignore_case).negated(negated)))
    }
}

fn literal(char: char, flags: Flags) -> Hir {
    if flags.ignore_case {
        return Set::range(char, char).folded(true).into_hir();
    }
    Hir::literal([byte(char)])
}

/// The bounds between braces: `2`, `2,` or `2,3`.
fn counts(text: &str) -> Option<Count> {
    // A number that overflows is above any bound.
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().unwrap_or(u32::MAX))
    };
    let (min, max) = match text.split_once(',') {
        None => (number(text)?, Some(number(text)?)),
        Some((min, "")) => (number(min)?, None),
        Some((min, max)) => (number(min)?, Some(number(max)?)),
    };
    Some(Count { min, max })
}
