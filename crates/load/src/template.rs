//! Messages encoded once, into which only the digits of a key are written, at offsets found in advance. Keys
//! of equal length make messages of equal length, so there is one template for each length.

/// Stands for the key in the user's text.
pub(crate) const PLACEHOLDER: &str = "{key}";

/// The templates of one message.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    by_length: Vec<OfLength>,
}

#[derive(Debug, Clone)]
struct OfLength {
    bytes: Vec<u8>,
    /// The offsets of the digits.
    places: Vec<usize>,
}

impl Template {
    /// Templates for keys below `keys`. `encode` makes the message of a key's text; its length must depend
    /// only on the length of the key.
    pub(crate) fn new(keys: u64, encode: impl Fn(&str) -> Vec<u8>) -> Template {
        let digits = keys.saturating_sub(1).to_string().len();
        let of_length = |length: usize| {
            // Two keys without a common digit: their messages differ exactly where the key is.
            let bytes = encode(&"0".repeat(length));
            let other = encode(&"1".repeat(length));
            let differ = bytes
                .iter()
                .zip(&other)
                .enumerate()
                .filter_map(|(place, (a, b))| (a != b).then_some(place));
            let places = differ.step_by(length).collect();
            OfLength { bytes, places }
        };
        Template { by_length: (1..=digits).map(of_length).collect() }
    }

    /// The message of a key. The key must be below `keys` of `new`.
    pub(crate) fn message(&mut self, key: u64) -> &[u8] {
        let mut digits = [0_u8; 20];
        let mut from = digits.len();
        let mut rest = key;
        loop {
            from -= 1;
            digits[from] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[from..];
        // Keys are below `keys`, so there is a template for their length.
        let template = &mut self.by_length[digits.len() - 1];
        for &place in &template.places {
            template.bytes[place..place + digits.len()].copy_from_slice(digits);
        }
        &template.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_makes_what_encoding_would_for_keys_of_every_length() {
        let texts =
            ["{key}", "a{key}b", "{key}{key}", "0{key}1", "user 10: {key}, again {key}.", "none"];
        for text in texts {
            let encode = |key: &str| {
                let text = text.replace(PLACEHOLDER, key);
                format!("{}:{text}", text.len()).into_bytes()
            };
            let mut template = Template::new(100_001, encode);
            for key in [0, 1, 9, 10, 11, 99, 100, 12_345, 99_999, 100_000, 7, 10] {
                assert_eq!(template.message(key), encode(&key.to_string()), "{text} {key}");
            }
        }
    }
}
