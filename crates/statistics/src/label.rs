//! The label of a statistic: its name and its keys, as one text.
//!
//! Counts belong to a label. So a statistic whose keys have changed begins anew, and its values never get the names of
//! other keys; and the database alone can say what its values are. The sums by one key of a statistic of several have a
//! label of their own, which no statistic has.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidegate_limits::Statistic;

#[derive(Serialize, Deserialize)]
struct Parts(String, Vec<String>, Option<String>);

/// The parts of a statistic, and the number of the key by which it is added up.
#[derive(Serialize, Deserialize)]
struct SumParts(String, Vec<String>, Option<String>, usize);

/// The label, in JSON.
#[must_use]
pub fn label(statistic: &Statistic) -> Arc<str> {
    let Statistic { name, by, distinct, .. } = statistic;
    let parts = Parts(name.clone(), by.clone(), distinct.clone());
    // Texts and lists of texts can always be written.
    serde_json::to_string(&parts).unwrap_or_default().into()
}

/// The statistic of a label, without its domain; none if the text is no label.
#[must_use]
pub fn labelled(label: &str) -> Option<Statistic> {
    let Parts(name, by, distinct) = serde_json::from_str(label).ok()?;
    Some(Statistic { name, domain: "".into(), by, distinct })
}

/// The labels of the sums by each key, if the label is that of a statistic of several keys.
#[must_use]
pub(crate) fn sum_labels(label: &str) -> Vec<Arc<str>> {
    let Some(Statistic { name, by, distinct, .. }) = labelled(label) else { return Vec::new() };
    if by.len() < 2 {
        return Vec::new();
    }
    let sum = |key| {
        let parts = SumParts(name.clone(), by.clone(), distinct.clone(), key);
        serde_json::to_string(&parts).unwrap_or_default().into()
    };
    (0..by.len()).map(sum).collect()
}

/// The name of the statistic of a label, also of a label of sums.
#[must_use]
pub(crate) fn name(label: &str) -> Option<String> {
    let of_sum = || serde_json::from_str(label).ok().map(|SumParts(name, ..)| name);
    labelled(label).map(|statistic| statistic.name).or_else(of_sum)
}

/// Whether the label is that of sums.
#[must_use]
pub(crate) fn is_sum(label: &str) -> bool {
    serde_json::from_str::<SumParts>(label).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_name_and_keys() {
        let by = vec!["app".to_owned(), "a\",\"b\0".to_owned()];
        let name = "users".to_owned();
        let statistic =
            Statistic { name, domain: "".into(), by, distinct: Some("user".to_owned()) };
        assert_eq!(&*label(&statistic), r#"["users",["app","a\",\"b\u0000"],"user"]"#);
        assert_eq!(labelled(&label(&statistic)), Some(statistic));
        assert_eq!(labelled("users"), None);
    }

    #[test]
    fn sums_have_labels_that_no_statistic_has() {
        let of = r#"["users",["app","path"],null]"#;
        let sums = sum_labels(of);
        let expected = [r#"["users",["app","path"],null,0]"#, r#"["users",["app","path"],null,1]"#];
        assert_eq!(sums.iter().map(|sum| &**sum).collect::<Vec<_>>(), expected);
        assert!(sums.iter().all(|sum| labelled(sum).is_none() && is_sum(sum)) && !is_sum(of));
        assert_eq!((name(of), name(expected[1])), (Some("users".into()), Some("users".into())));
        assert_eq!(name("users"), None);
        assert!(
            sum_labels(r#"["users",["app"],null]"#).is_empty() && sum_labels("users").is_empty()
        );
    }
}
