//! Compiles and checks operators and functions.

use super::compile::{Compiled, Compiler, Mistake, NUMBERS, Type, boxed, is_headers, mistake};
use super::names::FUNCTIONS;
use crate::config::when::{Comparison, Expr, Logical, Operator, TextTest};
use crate::matching::text::{Case, Needle, TextMatcher};
use cel::common::ast::{CallExpr, Expr as Parsed, IdedExpr, LiteralValue, operators};

impl Compiler<'_, '_> {
    pub(super) fn call(
        &mut self,
        of: &IdedExpr,
        call: &CallExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        let name = call.func_name.as_str();
        match (&call.target, call.args.as_slice()) {
            (None, [condition, yes, no]) if name == operators::CONDITIONAL => {
                let condition = self.of_type(condition, &[Type::Bool], depth)?;
                let (yes, no) = (self.part(yes, depth)?, self.part(no, depth)?);
                let of_type = if yes.1 == no.1 { yes.1 } else { Type::Any };
                Ok((Expr::Conditional(Box::new([condition.0, yes.0, no.0])), of_type))
            }
            (None, [left, right]) if !name.starts_with(|first: char| first.is_alphabetic()) => {
                self.binary(of, name, left, right, depth)
            }
            (None, [operand]) => self.unary(of, name, operand, depth),
            (Some(target), []) if name == "size" => self.unary(of, name, target, depth),
            (Some(target), [argument]) => self.text_test(of, name, target, argument, depth),
            _ => self.unknown_function(of, name),
        }
    }

    fn unknown_function<T>(&self, of: &IdedExpr, name: &str) -> Result<T, Mistake> {
        if FUNCTIONS.contains(&name) {
            let form = match name {
                "has" | "size" | "int" | "double" => format!("{name}(x)"),
                _ => format!("x.{name}(y)"),
            };
            return mistake(of, format!("expected the form {form}"));
        }
        mistake(of, self.node.unknown("function", name, &FUNCTIONS).message)
    }

    fn unary(
        &mut self,
        of: &IdedExpr,
        name: &str,
        operand: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        let convertible = [Type::Int, Type::Double, Type::Text];
        match name {
            operators::LOGICAL_NOT => {
                let operand = self.of_type(operand, &[Type::Bool], depth)?;
                Ok((Expr::Not(boxed(operand)), Type::Bool))
            }
            operators::NEGATE => {
                let operand = self.of_type(operand, &NUMBERS, depth)?;
                let of_type = operand.1;
                Ok((Expr::Negate(boxed(operand)), of_type))
            }
            "size" => {
                let sized = [Type::Text, Type::List, Type::Map];
                Ok((Expr::Size(boxed(self.of_type(operand, &sized, depth)?)), Type::Int))
            }
            "int" => Ok((Expr::Int(boxed(self.of_type(operand, &convertible, depth)?)), Type::Int)),
            "double" => {
                Ok((Expr::Double(boxed(self.of_type(operand, &convertible, depth)?)), Type::Double))
            }
            _ => self.unknown_function(of, name),
        }
    }

    fn binary(
        &mut self,
        of: &IdedExpr,
        name: &str,
        left: &IdedExpr,
        right: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        match name {
            operators::LOGICAL_AND | operators::LOGICAL_OR => {
                let kind = match name {
                    operators::LOGICAL_AND => Logical::And,
                    _ => Logical::Or,
                };
                let left = self.of_type(left, &[Type::Bool], depth)?;
                let right = self.of_type(right, &[Type::Bool], depth)?;
                Ok((Expr::Logical(kind, Box::new([left.0, right.0])), Type::Bool))
            }
            operators::INDEX => self.index(left, right, depth),
            operators::IN => self.is_in(left, right, depth),
            _ => {
                if let Some(comparison) = comparison(name) {
                    return self.compare(of, comparison, left, right, depth);
                }
                match operator(name) {
                    Some(operator) => self.compute(of, operator, left, right, depth),
                    None => self.unknown_function(of, name),
                }
            }
        }
    }

    fn index(
        &mut self,
        operand: &IdedExpr,
        key: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        if is_headers(operand) {
            return self.header_named(key);
        }
        let operand = self.of_type(operand, &[Type::List, Type::Map], depth)?;
        let keys: &[Type] = match operand.1 {
            Type::List => &[Type::Int],
            _ => &[Type::Text, Type::Int, Type::Bool],
        };
        let key = self.of_type(key, keys, depth)?;
        Ok((Expr::Index(Box::new([operand.0, key.0])), Type::Any))
    }

    fn is_in(
        &mut self,
        element: &IdedExpr,
        list: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        if is_headers(list) {
            return Ok((Expr::Has(boxed(self.header_named(element)?)), Type::Bool));
        }
        let element = self.part(element, depth)?;
        let list = self.of_type(list, &[Type::List, Type::Map], depth)?;
        Ok((Expr::In(Box::new([element.0, list.0])), Type::Bool))
    }

    fn compare(
        &mut self,
        of: &IdedExpr,
        comparison: Comparison,
        left: &IdedExpr,
        right: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        let scalars = match comparison {
            Comparison::Equal | Comparison::NotEqual => {
                &[Type::Null, Type::Bool, Type::Int, Type::Double, Type::Text][..]
            }
            _ => &[Type::Int, Type::Double, Type::Text],
        };
        let left = self.of_type(left, scalars, depth)?;
        let right = self.of_type(right, scalars, depth)?;
        let numbers = |of_type: Type| of_type.may_be(&NUMBERS);
        let are_alike = left.1.may_be(&[right.1])
            || right.1.may_be(&[left.1])
            || (numbers(left.1) && numbers(right.1));
        if !are_alike {
            return mistake(of, format!("{} is compared with {}", left.1, right.1));
        }
        Ok((Expr::Compare(comparison, Box::new([left.0, right.0])), Type::Bool))
    }

    fn compute(
        &mut self,
        of: &IdedExpr,
        operator: Operator,
        left: &IdedExpr,
        right: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        let left = self.of_type(left, &NUMBERS, depth)?;
        let right = self.of_type(right, &NUMBERS, depth)?;
        let of_type = match (left.1, right.1) {
            (Type::Any, other) | (other, Type::Any) => other,
            (one, other) if one == other => one,
            _ => {
                let message = "an int and a double are combined; use int(x) or double(x)";
                return mistake(of, message);
            }
        };
        if operator == Operator::Remainder && of_type == Type::Double {
            return mistake(of, "`%` is for ints");
        }
        Ok((Expr::Compute(operator, Box::new([left.0, right.0])), of_type))
    }

    /// A member function with one argument.
    fn text_test(
        &mut self,
        of: &IdedExpr,
        name: &str,
        target: &IdedExpr,
        argument: &IdedExpr,
        depth: u16,
    ) -> Result<Compiled, Mistake> {
        let test = match name {
            "startsWith" => Some(TextTest::StartsWith),
            "endsWith" => Some(TextTest::EndsWith),
            "contains" => Some(TextTest::Contains),
            "matches" => None,
            _ => return self.unknown_function(of, name),
        };
        let target = self.of_type(target, &[Type::Text], depth)?.0;
        let text = match &argument.expr {
            Parsed::Literal(LiteralValue::String(text)) => Some(text.inner()),
            _ => None,
        };
        let matcher = match (test, text) {
            (Some(test), None) => {
                let argument = self.of_type(argument, &[Type::Text], depth)?.0;
                return Ok((Expr::Test(test, Box::new([target, argument])), Type::Bool));
            }
            (None, None) => {
                return mistake(argument, "the expression of `matches` must be a constant string");
            }
            (None, Some(text)) => match self.interner.search_pattern(text) {
                Ok(pattern) => TextMatcher::Regex(pattern),
                Err(message) => return mistake(argument, message),
            },
            (Some(TextTest::StartsWith), Some(text)) => {
                TextMatcher::Prefix(text.to_owned(), Case::Sensitive)
            }
            (Some(TextTest::EndsWith), Some(text)) => {
                TextMatcher::Suffix(text.to_owned(), Case::Sensitive)
            }
            (Some(TextTest::Contains), Some(text)) => {
                TextMatcher::Contains(Needle::new(text, Case::Sensitive).into())
            }
        };
        Ok((Expr::Matches(Box::new(target), matcher), Type::Bool))
    }
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        operators::EQUALS => Comparison::Equal,
        operators::NOT_EQUALS => Comparison::NotEqual,
        operators::LESS => Comparison::Less,
        operators::LESS_EQUALS => Comparison::LessEqual,
        operators::GREATER => Comparison::Greater,
        operators::GREATER_EQUALS => Comparison::GreaterEqual,
        _ => return None,
    })
}

fn operator(name: &str) -> Option<Operator> {
    Some(match name {
        operators::ADD => Operator::Add,
        operators::SUBSTRACT => Operator::Subtract,
        operators::MULTIPLY => Operator::Multiply,
        operators::DIVIDE => Operator::Divide,
        operators::MODULO => Operator::Remainder,
        _ => return None,
    })
}
