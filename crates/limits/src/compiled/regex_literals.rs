//! The literal texts that every match of an expression has.
//!
//! Reads only the plainest of the syntax and is careful rather than thorough: in doubt it says less.
//! Expressions are valid here; they were compiled before.

use std::iter::Peekable;
use std::str::Chars;

/// What every value has that an expression matches as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Literals {
    /// What it starts with; may be empty.
    pub(super) start: String,
    /// What it has somewhere after that; none is empty.
    later: Vec<String>,
}

impl Literals {
    /// Of this expression.
    pub(super) fn of(expression: &str) -> Self {
        let mut literals = Literals::default();
        let mut rest = expression.strip_prefix('^').unwrap_or(expression).chars().peekable();
        let mut run = String::new();
        let mut is_start = true;
        loop {
            let literal = literal(&mut rest);
            // What is repeated may be missing altogether (`a+*`).
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
                // A choice outside any group makes all that was read just one of the ways.
                let may_choose = unread.any(|c| c == '|');
                return if may_choose { Literals::default() } else { literals };
            }
        }
    }

    /// All of them, to look for.
    pub(super) fn required(&self) -> Vec<&str> {
        let start = Some(&*self.start).filter(|start| !start.is_empty());
        start.into_iter().chain(self.later.iter().map(String::as_str)).collect()
    }
}

/// Takes a character that stands for itself.
fn literal(rest: &mut Peekable<Chars<'_>>) -> Option<char> {
    match rest.peek()? {
        '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => None,
        '\\' => {
            let mut ahead = rest.clone();
            ahead.next();
            // `\<` and `\>` are edges of words.
            let escaped =
                ahead.next().filter(|c| c.is_ascii_punctuation() && !"<>".contains(*c))?;
            *rest = ahead;
            Some(escaped)
        }
        _ => rest.next(),
    }
}

/// Takes what stands for something else; none at the end, or when it is too hard to read.
fn skip(rest: &mut Peekable<Chars<'_>>) -> Option<()> {
    match rest.next()? {
        '.' | '+' | '*' | '?' | '^' | '$' => Some(()),
        '{' => rest.find(|c| *c == '}').map(drop),
        '[' => skip_class(rest),
        '(' => skip_group(rest),
        // Of the escapes only classes of one letter: others have more text to come.
        '\\' => rest.next().filter(|c| "dDsSwW".contains(*c)).map(drop),
        _ => None,
    }
}

/// Takes what is left of a class, unless it has others inside.
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

/// Takes what is left of a group, unless it may set flags, which hold for what follows.
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
