//! Conditions of entries (`when`): CEL, parsed by the `cel` crate, then checked and compiled here.
//!
//! Only the parser of that crate is used. Its evaluator copies values, its comprehensions take
//! time that a client's lists would determine, and its `matches` has no bounds. Everything that
//! could fail whatever the request is a mistake here: unknown names, values of a wrong type.

mod calls;
mod compile;
mod names;
#[cfg(test)]
mod tests;

use super::checks::not_empty;
use crate::config::ConfigError;
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::when::{OnError, When};
use cel::common::ast::{IdedExpr, SourceInfo};
use cel::parser::pratt_parser::{Lexer, TokenKind};
use cel::parser::{ParseErrors, PrattParser};
use compile::Compiler;
use std::sync::Arc;

/// The longest expression.
const BYTES_MAX: usize = 2048;
/// The deepest nesting: parsing, compiling and evaluating recurse.
const DEPTH_MAX: u16 = 32;

/// The most operators, dots and opening brackets. In a chain such as `a + b + c`, each makes the
/// parser's tree deeper, and the tree is freed by recursion: of a thousand, one level is three
/// calls. Chains of `&&` and `||` are balanced.
const OPERATORS_MAX: usize = 256;

/// The condition of an entry, if it has one.
pub(super) fn when(
    entry: &Node<'_>,
    on_error: OnError,
    interner: &mut Interner,
) -> Result<Option<Box<When>>, ConfigError> {
    let Some(node) = entry.field("when") else { return Ok(None) };
    let text = not_empty(&node)?;
    let bytes = text.len();
    if bytes > BYTES_MAX {
        return Err(node.error(&format!("the expression has {bytes} bytes (maximum {BYTES_MAX})")));
    }
    let operators = operators(text);
    if operators > OPERATORS_MAX {
        return Err(node.error(&format!(
            "the expression has {operators} operators, dots and brackets (maximum {OPERATORS_MAX})"
        )));
    }
    let parsed = parse(text).map_err(|errors| node.error(&first_of(&errors)))?;
    let root = Compiler::new(&node, interner).root(&parsed).map_err(|mistake| {
        let at = position(text, mistake.expression);
        node.error(&located(&mistake.message, at))
    })?;
    Ok(Some(Box::new(When { path: node.error("").path, root, on_error })))
}

fn operators(text: &str) -> usize {
    let mut lexer = Lexer::new(text);
    let tokens = std::iter::from_fn(|| {
        let token = lexer.lex();
        (token.kind != TokenKind::TokEnd).then_some(token.kind)
    });
    let deepens = |kind: &TokenKind| {
        !matches!(
            kind,
            TokenKind::TokError
                | TokenKind::TokWhitespace
                | TokenKind::TokComment
                | TokenKind::TokNull
                | TokenKind::TokFalse
                | TokenKind::TokTrue
                | TokenKind::TokInt
                | TokenKind::TokFloat
                | TokenKind::TokString
                | TokenKind::TokIdent
                | TokenKind::TokRightBracket
                | TokenKind::TokRightBrace
                | TokenKind::TokRightParen
                | TokenKind::TokComma
                | TokenKind::TokColon
                | TokenKind::TokLogicalAnd
                | TokenKind::TokLogicalOr
        )
    };
    // An error is a token too, so the end comes after at most as many as there are bytes.
    tokens.take(BYTES_MAX).filter(deepens).count()
}

fn parse(text: &str) -> Result<IdedExpr, ParseErrors> {
    PrattParser::new().max_recursion_depth(DEPTH_MAX).parse(text)
}

fn first_of(errors: &ParseErrors) -> String {
    let all = errors.errors.iter();
    if all.clone().any(|error| error.msg.contains("recursion limit")) {
        return too_deep();
    }
    // One without a position is about the number of others.
    let first = all.min_by_key(|error| (error.pos == (0, 0), error.pos));
    let message = first.map_or("", |error| &error.msg);
    let offset = |source: &Arc<SourceInfo>, id| Some(source.offset_for(id)?.0);
    let at = first.and_then(|error| offset(error.source_info.as_ref()?, error.expr_id));
    located(&format!("not an expression of CEL: {message}"), at)
}

fn too_deep() -> String {
    format!("the expression is nested too deep (maximum {DEPTH_MAX})")
}

fn located(message: &str, at: Option<u32>) -> String {
    at.map_or(message.to_owned(), |at| format!("{message} (at byte {at})"))
}

/// The position of a part of a valid expression. The parser returns positions only beside errors,
/// so it reads the text once more with an error at its end; the parts keep their numbers.
fn position(text: &str, expression: u64) -> Option<u32> {
    let errors = parse(&format!("{text}\n)")).err()?;
    let mut sources = errors.errors.iter().filter_map(|error| error.source_info.as_ref());
    Some(sources.next()?.offset_for(expression)?.0)
}
