//! The identity of an Envoy process, shared by its workers: the secret seed of lease keys, and the
//! number that identifies the process to the sidecar. The first worker creates both.

use crate::config::Config;
use crate::host::Host;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

const KEY: &str = "tidegate/1/process";
const VERSION: u8 = 1;
const TRIES: u32 = 8;

/// The process, as one plugin configuration sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    /// The seed of lease keys.
    pub(crate) seed: u64,
    /// Identifies the process to the sidecar.
    pub(crate) proxy: u64,
}

impl ProcessIdentity {
    /// Adopts the identity that another worker created, or creates it. Cluster and domain are mixed
    /// into the seed, so that two plugins share leases only if they call the same sidecar for the
    /// same domain.
    pub(crate) fn join(host: &impl Host, config: &Config) -> ProcessIdentity {
        let process = agree(host);
        let mut hash = Xxh3::with_seed(process.seed);
        for part in [&config.cluster, &config.domain] {
            hash.update(&xxh3_64_with_seed(part.as_bytes(), process.seed).to_le_bytes());
        }
        ProcessIdentity { seed: hash.digest(), proxy: process.proxy }
    }
}

fn agree(host: &impl Host) -> ProcessIdentity {
    let own = ProcessIdentity { seed: host.random(), proxy: host.random() };
    for _ in 0..TRIES {
        let value = host.shared(KEY);
        if let Some(process) = value.bytes.as_deref().and_then(decode) {
            return process;
        }
        if host.set_shared(KEY, &encode(own), value.version).is_ok() {
            return own;
        }
    }
    // No other worker has these keys. This worker shares no lease, but is still correct.
    own
}

fn encode(process: ProcessIdentity) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&process.seed.to_le_bytes());
    bytes.extend_from_slice(&process.proxy.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<ProcessIdentity> {
    let (&version, rest) = bytes.split_first()?;
    let (seed, rest) = rest.split_first_chunk()?;
    let (proxy, rest) = rest.split_first_chunk()?;
    (version == VERSION && rest.is_empty()).then_some(ProcessIdentity {
        seed: u64::from_le_bytes(*seed),
        proxy: u64::from_le_bytes(*proxy),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_bytes_are_no_identity() {
        let process = ProcessIdentity { seed: 7, proxy: u64::MAX };
        let bytes = encode(process);
        assert_eq!(decode(&bytes), Some(process));
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        for foreign in [&b""[..], &newer, &bytes[..16], &[&bytes[..], &[0]].concat()] {
            assert_eq!(decode(foreign), None);
        }
    }
}
