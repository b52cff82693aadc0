//! What rules carry for others to read: a value as JSON has them, opaque to every decision.

/// A value of a rule's `metadata`.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A number, with the precision of a double as in JSON.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A map, in the order of the file.
    Map(Vec<(String, Value)>),
}
