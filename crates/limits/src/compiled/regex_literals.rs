//! The literal texts that every match of a regular expression contains.
//!
//! Understands only the simplest syntax, and finds fewer literals rather than wrong ones. Expressions have
//! been compiled before, so they are valid.

use std::iter::Peekable;
use std::str::Chars;

/// The literals of every value that an expression matches as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Literals {
    /// The prefix; may be empty.
    pub(super) start: String,
    /// Literals after the prefix; none is empty.
    later: Vec<String>,
}

impl Literals {
    pub(super) fn of(expression: &str) -> Self {
        let mut literals = Literals::default();
        let mut rest = expression.strip_prefix('^').unwrap_or(expression).chars().peekable();
        let mut run = String::new();
        let mut is_start = true;
        loop {
            let literal = literal(&mut rest);
            // A repeated item may be absent (`a+*`).
            let repeated = matches!(rest.peek(), Some('?' | '*' | '+' | '{'));
            if let Some(literal) = literal.filter(|_| !repeated) {
                run.push(literal);
                continue;
            }
            let run = std::mem::take(&mut run);
            if is_start {
                literals.start = run;
            } else if !run.is_empty() {
                literals.later.push(run);
            }
            is_start = false;
            let mut unread = rest.clone();
            if literal.is_none() && skip(&mut rest).is_none() {
                // An alternation outside of groups makes the text so far only one of the alternatives.
                let may_choose = unread.any(|c| c == '|');
                return if may_choose { Literals::default() } else { literals };
            }
        }
    }

    /// All literals, for a search.
    pub(super) fn required(&self) -> Vec<&str> {
        let start = Some(&*self.start).filter(|start| !start.is_empty());
        start.into_iter().chain(self.later.iter().map(String::as_str)).collect()
    }
}

/// Consumes a character that stands for itself.
fn literal(rest: &mut Peekable<Chars<'_>>) -> Option<char> {
    match rest.peek()? {
        '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => None,
        '\\' => {
            let mut ahead = rest.clone();
            ahead.next();
            // `\<` and `\>` are word boundaries.
            let escaped =
                ahead.next().filter(|c| c.is_ascii_punctuation() && !"<>".contains(*c))?;
            *rest = ahead;
            Some(escaped)
        }
        _ => rest.next(),
    }
}

/// Consumes an item that is not literal; none at the end, or for syntax that is not understood.
fn skip(rest: &mut Peekable<Chars<'_>>) -> Option<()> {
    match rest.next()? {
        '.' | '+' | '*' | '?' | '^' | '$' => Some(()),
        '{' => rest.find(|c| *c == '}').map(drop),
        '[' => skip_class(rest),
        '(' => skip_group(rest),
        // Only classes of one letter: other escapes continue after the letter.
        '\\' => rest.next().filter(|c| "dDsSwW".contains(*c)).map(drop),
        _ => None,
    }
}

/// Consumes the rest of a class; none if it has nested classes.
fn skip_class(rest: &mut Peekable<Chars<'_>>) -> Option<()> {
    rest.next_if_eq(&'^');
    if rest.peek() == Some(&']') {
        return None;
    }
    loop {
        match rest.next()? {
            ']' => return Some(()),
            '[' => return None,
            '\\' => drop(rest.next()),
            _ => {}
        }
    }
}

/// Consumes the rest of a group; none if it may set flags, which would affect the text after it.
fn skip_group(rest: &mut Peekable<Chars<'_>>) -> Option<()> {
    let mut depth = 1_usize;
    if rest.next_if_eq(&'?').is_some() && rest.next() != Some(':') {
        return None;
    }
    while depth > 0 {
        match rest.next()? {
            '(' if rest.next_if_eq(&'?').is_some() && rest.next() != Some(':') => return None,
            '(' => depth += 1,
            ')' => depth -= 1,
            '[' => skip_class(rest)?,
            '\\' => drop(rest.next()),
            _ => {}
        }
    }
    Some(())
}
