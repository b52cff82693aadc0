//! HTTP headers as Envoy's header map holds them, and their wire form in the proxy-wasm ABI.
//!
//! Names are lower-case and compared as such; order and repetition are kept. The host refuses
//! what must never reach a client: names that are no HTTP tokens, values with CR, LF or NUL.
//! Unlike Envoy it does not fold repeated well-known headers into one comma-separated value.

/// An ordered list of headers; a name may occur several times.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Headers(Vec<(String, Vec<u8>)>);

impl Headers {
    /// Headers from a test's list; panics on one that HTTP does not allow.
    #[track_caller]
    pub(crate) fn new(list: &[(&str, &[u8])]) -> Self {
        let mut headers = Self::default();
        for (name, value) in list {
            if let Err(reason) = headers.add(name.as_bytes(), value) {
                panic!("the test's headers: {reason}");
            }
        }
        headers
    }

    /// The first value of `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_slice())
    }

    /// The first value of `name` as text; panics when it is not UTF-8.
    #[track_caller]
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let value = self.get(name)?;
        match std::str::from_utf8(value) {
            Ok(text) => Some(text),
            Err(_) => panic!("header {name} is not UTF-8: {}", value.escape_ascii()),
        }
    }

    /// Every value of `name`, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&[u8]> {
        let same = self.0.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_slice()).collect()
    }

    /// Names and values in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// Number of headers, each repetition counted.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends a header, as Envoy's `addCopy`.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let name = checked_name(name)?;
        if let Some(byte) = value.iter().find(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(format!("the value of header {name} contains byte {byte:#04x}"));
        }
        self.0.push((name, value.to_vec()));
        Ok(())
    }

    /// Removes every header of this name, then appends one, as Envoy's `setCopy`.
    pub(super) fn replace(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let before = self.0.len();
        self.add(name, value)?;
        let added = self.0.split_off(before);
        self.0.retain(|(known, _)| !known.as_bytes().eq_ignore_ascii_case(name));
        self.0.extend(added);
        Ok(())
    }

    /// The ABI's form: count, then the sizes of all names and values, then the bytes of all,
    /// each followed by a NUL. Numbers are 32-bit little-endian. No headers are no bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut bytes = size_on_wire(self.0.len()).to_vec();
        for (name, value) in &self.0 {
            bytes.extend(size_on_wire(name.len()));
            bytes.extend(size_on_wire(value.len()));
        }
        for (name, value) in &self.0 {
            bytes.extend(name.as_bytes());
            bytes.push(0);
            bytes.extend(value);
            bytes.push(0);
        }
        bytes
    }

    /// Reads the ABI's form. Envoy takes malformed pairs for none at all; here they are an
    /// error, since only a bug in the guest produces them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut rest = bytes;
        let count = take_u32(&mut rest)?;
        let sizes = take(&mut rest, u64::from(count) * 8)?;
        let mut headers = Self::default();
        for mut pair in sizes.chunks_exact(8) {
            let name_size = take_u32(&mut pair)?;
            let value_size = take_u32(&mut pair)?;
            let name = take_terminated(&mut rest, name_size)?;
            let value = take_terminated(&mut rest, value_size)?;
            headers.add(name, value)?;
        }
        if rest.is_empty() {
            Ok(headers)
        } else {
            Err(format!("malformed header pairs: {} bytes too many", rest.len()))
        }
    }
}

/// Lower-cases a name and checks that it is an HTTP token, or a pseudo-header.
fn checked_name(name: &[u8]) -> Result<String, String> {
    let token = name.strip_prefix(b":").unwrap_or(name);
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if token.is_empty() || !token.iter().all(good) {
        return Err(format!("\"{}\" is not a header name", name.escape_ascii()));
    }
    Ok(String::from_utf8_lossy(name).to_ascii_lowercase())
}

fn size_on_wire(size: usize) -> [u8; 4] {
    u32::try_from(size).expect("headers of a test fit 32 bits").to_le_bytes()
}

/// Splits `size` bytes off the front of `rest`.
fn take<'a>(rest: &mut &'a [u8], size: u64) -> Result<&'a [u8], String> {
    let split = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
    let Some((front, back)) = split else {
        return Err(format!("malformed header pairs: want {size} bytes, have {}", rest.len()));
    };
    *rest = back;
    Ok(front)
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, String> {
    let bytes = take(rest, 4)?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Splits `size` bytes and the NUL after them off the front of `rest`.
fn take_terminated<'a>(rest: &mut &'a [u8], size: u32) -> Result<&'a [u8], String> {
    match take(rest, u64::from(size) + 1)? {
        [text @ .., 0] => Ok(text),
        _ => Err("malformed header pairs: a name or value does not end with NUL".to_owned()),
    }
}
