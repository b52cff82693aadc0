//! The commands of `tidegate` as a user runs them, and the commands that the documentation prints.

mod docs;
mod load;
mod rules;
mod store;
mod translate;
