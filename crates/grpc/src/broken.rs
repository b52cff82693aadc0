//! The end of a connection, and the error codes of HTTP/2.

/// The peer violated the protocol or exceeded a limit. Write the remaining output (GOAWAY) before closing the
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (HTTP/2 error {code})")]
pub struct Broken {
    /// The HTTP/2 error code.
    pub code: u32,
    /// The cause.
    pub reason: &'static str,
}

impl Broken {
    pub(crate) const fn new(code: ErrorCode, reason: &'static str) -> Broken {
        Broken { code: code as u32, reason }
    }

    pub(crate) const fn protocol(reason: &'static str) -> Broken {
        Broken::new(ErrorCode::Protocol, reason)
    }

    pub(crate) const fn frame_size(reason: &'static str) -> Broken {
        Broken::new(ErrorCode::FrameSize, reason)
    }

    pub(crate) const fn flow_control(reason: &'static str) -> Broken {
        Broken::new(ErrorCode::FlowControl, reason)
    }

    pub(crate) const fn excess(reason: &'static str) -> Broken {
        Broken::new(ErrorCode::EnhanceYourCalm, reason)
    }
}

/// The error codes of RFC 9113, section 7, that this crate sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ErrorCode {
    NoError = 0x0,
    Protocol = 0x1,
    FlowControl = 0x3,
    StreamClosed = 0x5,
    FrameSize = 0x6,
    RefusedStream = 0x7,
    Cancel = 0x8,
    Compression = 0x9,
    EnhanceYourCalm = 0xb,
}
