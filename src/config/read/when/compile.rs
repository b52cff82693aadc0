//! Compiles and checks the parts of an expression.

use super::names::{CLAIMS, VARIABLES, Variable, type_of};
use super::{DEPTH_MAX, too_deep};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::read::checks::as_header_name;
use crate::config::when::{Constant, Expr, Form};
use cel::common::ast::{EntryExpr, Expr as Parsed, IdedExpr, LiteralValue};
use std::fmt::Display;

/// The most parts of an expression.
const PARTS_MAX: usize = 256;

/// A mistake in a part of an expression.
pub(super) struct Mistake {
    /// The parser's number of the part.
    pub(super) expression: u64,
    pub(super) message: String,
}

/// The type of a part, as far as it is known before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Bool,
    Int,
    Double,
    Text,
    List,
    Map,
    /// That of a value in metadata.
    Any,
}

impl Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Type::Null => "null",
            Type::Bool => "a bool",
            Type::Int => "an int",
            Type::Double => "a double",
            Type::Text => "a string",
            Type::List => "a list",
            Type::Map => "a map",
            Type::Any => "any value",
        })
    }
}

impl Type {
    pub(super) fn may_be(self, expected: &[Type]) -> bool {
        self == Type::Any || expected.contains(&self)
    }
}

pub(super) const NUMBERS: [Type; 2] = [Type::Int, Type::Double];

/// A compiled part.
pub(super) type Compiled = (Expr, Type);

pub(super) struct Compiler<'a, 'n> {
    pub(super) node: &'a Node<'n>,
    pub(super) interner: &'a mut Interner,
    parts: usize,
}

pub(super) fn mistake<T>(of: &IdedExpr, message: impl Display) -> Result<T, Mistake> {
    Err(Mistake { expression: of.id, message: message.to_string() })
}

pub(super) fn boxed(compiled: Compiled) -> Box<Expr> {
    Box::new(compiled.0)
}

impl<'a, 'n> Compiler<'a, 'n> {
    pub(super) fn new(node: &'a Node<'n>, interner: &'a mut Interner) -> Self {
        Compiler { node, interner, parts: 0 }
    }

    /// The whole expression.
    pub(super) fn root(&mut self, of: &IdedExpr) -> Result<Expr, Mistake> {
        Ok(self.of_type(of, &[Type::Bool], DEPTH_MAX)?.0)
    }

    /// A part that may have one of these types.
    pub(super) fn of_type(
        &mut self,
        of: &IdedExpr,
        expected: &[Type],
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        let compiled = self.part(of, depth)?;
        if compiled.1.may_be(expected) {
            return Ok(compiled);
        }
        let names: Vec<String> = expected.iter().map(Type::to_string).collect();
        mistake(of, format!("this is {}, expected {}", compiled.1, names.join(" or ")))
    }

    /// A part at most this deep.
    pub(super) fn part(&mut self, of: &IdedExpr, depth: u16) -> Result<Compiled, Mistake> {
        let Some(depth) = depth.checked_sub(1) else {
            return mistake(of, too_deep());
        };
        self.parts = self.parts.saturating_add(1);
        if self.parts > PARTS_MAX {
            return mistake(of, format!("the expression has too many parts (maximum {PARTS_MAX})"));
        }
        match &of.expr {
            Parsed::Literal(literal) => {
                let Some(constant) = constant(literal) else {
                    return mistake(of, "bytes and unsigned numbers are not supported");
                };
                let of_type = type_of_constant(&constant);
                Ok((Expr::Constant(constant), of_type))
            }
            Parsed::List(list) => {
                let items = list.elements.iter().map(|item| self.constant(item));
                Ok((Expr::List(items.collect::<Result<_, _>>()?), Type::List))
            }
            Parsed::Map(map) => {
                let mut entries: Vec<(Constant, Constant)> = Vec::new();
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return mistake(of, "messages are not supported");
                    };
                    let (key, value) = (self.constant(&entry.key)?, self.constant(&entry.value)?);
                    if matches!(key, Constant::Null | Constant::Double(_)) {
                        return mistake(&entry.key, "a key must be a string, an int or a bool");
                    }
                    if entries.iter().any(|(known, _)| *known == key) {
                        return mistake(&entry.key, "the map has this key twice");
                    }
                    entries.push((key, value));
                }
                Ok((Expr::Map(entries), Type::Map))
            }
            Parsed::Ident(_) => self.name(of, depth),
            Parsed::Select(select) if select.test => {
                let inner = self.field(of, &select.operand, &select.field, depth)?;
                Ok((Expr::Has(boxed(inner)), Type::Bool))
            }
            Parsed::Select(_) => self.name(of, depth),
            Parsed::Call(call) => self.call(of, call, depth),
            Parsed::Comprehension(_) => mistake(
                of,
                "macros such as `all`, `exists`, `filter` and `map` are not supported: a client \
                 may determine how often they repeat",
            ),
            Parsed::Struct(_) | Parsed::Unspecified => mistake(of, "messages are not supported"),
        }
    }

    fn constant(&mut self, of: &IdedExpr) -> Result<Constant, Mistake> {
        self.parts = self.parts.saturating_add(1);
        if self.parts > PARTS_MAX {
            return mistake(of, format!("the expression has too many parts (maximum {PARTS_MAX})"));
        }
        match &of.expr {
            Parsed::Literal(literal) if let Some(constant) = constant(literal) => Ok(constant),
            _ => mistake(of, "lists and maps may contain only constants"),
        }
    }

    /// A name: that of a variable, or a field of a value.
    fn name(&mut self, of: &IdedExpr, depth: u16) -> Result<Compiled, Mistake> {
        match &of.expr {
            Parsed::Select(select) => self.field(of, &select.operand, &select.field, depth),
            Parsed::Ident(name) => self.unknown(of, name),
            _ => mistake(of, "expected a name"),
        }
    }

    /// A field of an operand.
    fn field(
        &mut self,
        of: &IdedExpr,
        operand: &IdedExpr,
        field: &str,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        match &operand.expr {
            Parsed::Ident(name) => {
                let name = format!("{name}.{field}");
                match VARIABLES.iter().find(|(known, _)| *known == name) {
                    Some((_, variable)) => self.variable(of, *variable),
                    None => self.unknown(of, &name),
                }
            }
            _ if is_headers(operand) => self.header(of, field),
            _ => {
                let key = Expr::Constant(Constant::Text(field.to_owned()));
                let operand = self.of_type(operand, &[Type::Map], depth)?;
                Ok((Expr::Index(Box::new([operand.0, key])), Type::Any))
            }
        }
    }

    fn unknown<T>(&self, of: &IdedExpr, name: &str) -> Result<T, Mistake> {
        let known: Vec<&str> = VARIABLES.iter().map(|(known, _)| *known).collect();
        mistake(of, self.node.unknown("variable", name, &known).message)
    }

    fn variable(&mut self, of: &IdedExpr, variable: Variable) -> Result<Compiled, Mistake> {
        let (fact, form) = match variable {
            Variable::Header(name, form) => (self.interner.header(name), form),
            Variable::Property(path, form) => (self.interner.property(path), form),
            Variable::Headers => {
                return mistake(
                    of,
                    "name one header: request.headers['x-app'] or 'x-app' in request.headers",
                );
            }
            Variable::Metadata => {
                return Ok((Expr::Metadata(self.interner.property(&["metadata"])), Type::Map));
            }
            Variable::Claims => {
                let all = Expr::Metadata(self.interner.property(&["metadata"]));
                let below = |map, key: &str| {
                    Expr::Index(Box::new([map, Expr::Constant(Constant::Text(key.to_owned()))]))
                };
                return Ok((CLAIMS.into_iter().fold(all, below), Type::Any));
            }
        };
        Ok((Expr::Variable(fact, form), type_of(form)))
    }

    fn header(&mut self, of: &IdedExpr, name: &str) -> Result<Compiled, Mistake> {
        let name = as_header_name(self.node, name)
            .map_err(|error| Mistake { expression: of.id, message: error.message })?;
        Ok((Expr::Variable(self.interner.header(&name), Form::Text), Type::Text))
    }

    /// The constant name of a header.
    pub(super) fn header_named(&mut self, name: &IdedExpr) -> Result<Compiled, Mistake> {
        match &name.expr {
            Parsed::Literal(LiteralValue::String(text)) => self.header(name, text.inner()),
            _ => mistake(name, "the name of a header must be a constant string"),
        }
    }
}

pub(super) fn is_headers(of: &IdedExpr) -> bool {
    matches!(&of.expr, Parsed::Select(select) if !select.test
        && select.field == "headers"
        && matches!(&select.operand.expr, Parsed::Ident(name) if name == "request"))
}

fn constant(literal: &LiteralValue) -> Option<Constant> {
    Some(match literal {
        LiteralValue::Null => Constant::Null,
        LiteralValue::Boolean(value) => Constant::Bool(*value.inner()),
        LiteralValue::Int(value) => Constant::Int(*value.inner()),
        LiteralValue::Double(value) => Constant::Double(*value.inner()),
        LiteralValue::String(value) => Constant::Text(value.inner().to_owned()),
        LiteralValue::Bytes(_) | LiteralValue::UInt(_) => return None,
    })
}

fn type_of_constant(constant: &Constant) -> Type {
    match constant {
        Constant::Null => Type::Null,
        Constant::Bool(_) => Type::Bool,
        Constant::Int(_) => Type::Int,
        Constant::Double(_) => Type::Double,
        Constant::Text(_) => Type::Text,
    }
}
