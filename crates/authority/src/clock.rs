//! The sidecar's one reading of the time.

use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_core::Timestamp;

/// Now, by the system clock: windows are aligned to the time of day. A clock before 1970 reads
/// as 1970.
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}
