//! The shared data of an Envoy process with Envoy's semantics: no delete, no enumeration, one
//! version counter for all keys.

use std::collections::BTreeMap;
use tidegate::host::{Conflict, SharedValue};

#[derive(Debug, Default)]
pub(crate) struct Shared {
    values: BTreeMap<String, (Vec<u8>, u32)>,
    version: u32,
}

impl Shared {
    #[must_use]
    pub(crate) fn get(&self, key: &str) -> SharedValue {
        match self.values.get(key) {
            None => SharedValue::default(),
            Some((bytes, version)) => {
                SharedValue { bytes: (!bytes.is_empty()).then(|| bytes.clone()), version: *version }
            }
        }
    }

    /// Writes a value if it has this version. An absent value can be written with any version.
    ///
    /// # Errors
    /// If it has another version.
    pub(crate) fn set(&mut self, key: &str, value: &[u8], version: u32) -> Result<(), Conflict> {
        if self.values.get(key).is_some_and(|(_, current)| *current != version) {
            return Err(Conflict);
        }
        self.overwrite(key, value);
        Ok(())
    }

    /// Writes a value regardless of its version.
    pub(crate) fn overwrite(&mut self, key: &str, value: &[u8]) {
        self.version = self.version.checked_add(1).unwrap_or(1);
        match self.values.get_mut(key) {
            Some(current) => *current = (value.to_vec(), self.version),
            None => {
                self.values.insert(key.to_owned(), (value.to_vec(), self.version));
            }
        }
    }

    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_needs_the_version_that_was_read() {
        let mut shared = Shared::default();
        assert_eq!(shared.get("a"), SharedValue::default());
        assert_eq!(shared.set("a", b"1", 0), Ok(()));
        assert_eq!(shared.set("a", b"2", 0), Err(Conflict));
        assert_eq!(shared.set("b", b"", 0), Ok(()));
        assert_eq!(shared.get("b"), SharedValue { bytes: None, version: 2 });
        assert_eq!(shared.set("a", b"3", 2), Err(Conflict));
        assert_eq!(shared.set("a", b"3", 1), Ok(()));
        assert_eq!(shared.get("a"), SharedValue { bytes: Some(b"3".to_vec()), version: 3 });
        assert_eq!(shared.count(), 2);
    }
}
