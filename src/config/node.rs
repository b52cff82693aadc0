//! A value of the document with its position: the few steps by which all parts of a configuration
//! are read. An error names the field by its path, which is built only then.
//!
//! Nothing here is generic, and these functions are not inlined. Deserializers derived for every
//! struct, with the paths of fields, were a third of the module, and every virtual machine of Envoy
//! compiles and keeps all of it.

use super::ConfigError;
use super::tree::Tree;
use super::unsupported::{Unsupported, is_default};

/// A value and the path to it.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    value: &'a Tree,
    parent: Option<&'a Node<'a>>,
    step: PathStep<'a>,
}

/// The last step of the path.
#[derive(Clone, Copy)]
enum PathStep<'a> {
    Document,
    Field(&'a str),
    Item(usize),
}

impl<'a> Node<'a> {
    pub(super) fn document(value: &'a Tree) -> Self {
        Node { value, parent: None, step: PathStep::Document }
    }

    /// Checks that it is an object with no other than these fields. `unsupported` fields of Envoy
    /// may be present with their default.
    #[inline(never)]
    pub(super) fn object(
        &self,
        expected: &str,
        fields: &[&str],
        unsupported: &[Unsupported],
    ) -> Result<(), ConfigError> {
        let Tree::Object(found) = self.value else { return Err(self.invalid("type", expected)) };
        for (index, (name, value)) in found.iter().enumerate() {
            // Of a Struct, whose map may have a name in both spellings. Their order means nothing.
            if found.iter().skip(index.saturating_add(1)).any(|(other, _)| other == name) {
                return Err(self.error(&format!("duplicate key `{name}`")));
            }
            if fields.contains(&name.as_str()) {
                continue;
            }
            let at = self.child(name, value);
            match unsupported.iter().find(|(unsupported, _)| unsupported == name) {
                Some(_) if is_default(value) => {}
                Some((_, sentence)) => {
                    return Err(at.error(&format!("not supported: {sentence}")));
                }
                None => return Err(at.unknown("field", name, fields)),
            }
        }
        Ok(())
    }

    /// A field of an object; null if absent, which means the same.
    #[inline(never)]
    pub(super) fn at<'b>(&'b self, name: &'b str) -> Node<'b> {
        let found = match self.value {
            Tree::Object(fields) => fields.iter().find(|(known, _)| known == name),
            _ => None,
        };
        self.child(name, found.map_or(&Tree::Null, |(_, value)| value))
    }

    /// A field of an object, if present.
    #[inline(never)]
    pub(super) fn field<'b>(&'b self, name: &'b str) -> Option<Node<'b>> {
        let field = self.at(name);
        (!field.is_absent()).then_some(field)
    }

    #[inline(never)]
    pub(super) fn required<'b>(&'b self, name: &'b str) -> Result<Node<'b>, ConfigError> {
        self.field(name).ok_or_else(|| self.error(&format!("missing field `{name}`")))
    }

    /// The present ones of these fields.
    #[inline(never)]
    pub(super) fn fields<'b>(&'b self, names: &[&'b str]) -> Vec<(&'b str, Node<'b>)> {
        names.iter().filter_map(|name| Some((*name, self.field(name)?))).collect()
    }

    /// The present one of the fields of a protobuf oneof.
    #[inline(never)]
    pub(super) fn one_of<'b>(
        &'b self,
        names: &[&'b str],
    ) -> Result<(&'b str, Node<'b>), ConfigError> {
        match self.fields(names).as_slice() {
            [one] => Ok(*one),
            _ => Err(self.error(&format!("expected exactly one of {}", listed(names)))),
        }
    }

    /// A boolean field, or its default.
    #[inline(never)]
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        let field = self.at(name);
        match field.value {
            Tree::Flag(flag) => Ok(*flag),
            Tree::Null => Ok(default),
            _ => Err(field.invalid("type", "a boolean")),
        }
    }

    #[inline(never)]
    pub(super) fn text(&self) -> Result<&'a str, ConfigError> {
        match self.value {
            Tree::Text(text) => Ok(text),
            _ => Err(self.invalid("type", "a string")),
        }
    }

    #[inline(never)]
    pub(super) fn whole(&self, expected: &str) -> Result<i64, ConfigError> {
        match self.value {
            Tree::Whole(number) => Ok(*number),
            _ => Err(self.invalid("type", expected)),
        }
    }

    #[inline(never)]
    pub(super) fn items<'b>(&'b self) -> Result<Vec<Node<'b>>, ConfigError> {
        let Tree::List(items) = self.value else { return Err(self.invalid("type", "a list")) };
        let node = |(index, value)| Node { value, parent: Some(self), step: PathStep::Item(index) };
        Ok(items.iter().enumerate().map(node).collect())
    }

    /// Whether it is absent or null.
    pub(super) fn is_absent(&self) -> bool {
        *self.value == Tree::Null
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self.value, Tree::Text(_))
    }

    pub(super) fn is_flag(&self) -> bool {
        matches!(self.value, Tree::Flag(_))
    }

    pub(super) fn is_object(&self) -> bool {
        matches!(self.value, Tree::Object(_))
    }

    fn child<'b>(&'b self, name: &'b str, value: &'b Tree) -> Node<'b> {
        Node { value, parent: Some(self), step: PathStep::Field(name) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, message: &str) -> ConfigError {
        ConfigError::new(self.path(), message)
    }

    /// An unexpected `type` or `value`.
    #[cold]
    #[inline(never)]
    pub(super) fn invalid(&self, by: &str, expected: &str) -> ConfigError {
        let found = match self.value {
            Tree::Null => "null".to_owned(),
            Tree::Flag(flag) => format!("boolean `{flag}`"),
            Tree::Whole(number) => format!("integer `{number}`"),
            Tree::OtherNumber => "a number that is not an integer, or too large".to_owned(),
            Tree::Text(text) => format!("string {text:?}"),
            Tree::List(_) => "list".to_owned(),
            Tree::Object(_) => "object".to_owned(),
        };
        self.error(&format!("invalid {by}: {found}, expected {expected}"))
    }

    /// An unknown `field` or `variant`.
    #[cold]
    #[inline(never)]
    pub(super) fn unknown(&self, kind: &str, name: &str, known: &[&str]) -> ConfigError {
        let expected = match known {
            [] => "there are no fields".to_owned(),
            [one] => format!("expected `{one}`"),
            [one, other] => format!("expected `{one}` or `{other}`"),
            many => format!("expected one of {}", listed(many)),
        };
        let meant = meant(name, known).map(|known| format!(" (did you mean `{known}`?)"));
        self.error(&format!("unknown {kind} `{name}`{}, {expected}", meant.unwrap_or_default()))
    }

    fn path(&self) -> String {
        let mut path = self.parent.map(Node::path).unwrap_or_default();
        match self.step {
            PathStep::Document => {}
            PathStep::Field(name) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
            }
            PathStep::Item(index) => path.push_str(&format!("[{index}]")),
        }
        path
    }
}

/// The known name nearest to a misspelt one.
#[cold]
fn meant<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // Longer names are not typing errors, and the comparison is quadratic.
    const NAME_BYTES_MAX: usize = 64;
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let slips_max = if name.len() < 5 { 1 } else { 2 };
    let known = known.iter().filter(|known| !known.is_empty());
    let near = known.map(|known| (strsim::levenshtein(name, known), *known));
    near.filter(|(slips, _)| *slips <= slips_max).min().map(|(_, known)| known)
}

/// Names as messages list them.
fn listed(names: &[&str]) -> String {
    format!("`{}`", names.join("`, `"))
}
