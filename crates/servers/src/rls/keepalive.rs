//! What the system does for a TCP connection: an end to peers that are gone without a word.

use rustix::io;
use rustix::net::sockopt;
use std::time::Duration;
use tokio::net::TcpStream;

/// A silent peer is asked whether it is there: first after a minute, then every 15 s, and given up
/// after four questions without an answer, so two minutes after its last sign.
const IDLE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(15);
const COUNT: u32 = 4;

/// Has the system ask.
pub(super) fn set(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_keepidle(socket, IDLE)?;
    sockopt::set_tcp_keepintvl(socket, INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_asked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set(&socket).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket), Ok(IDLE));
        assert_eq!(sockopt::tcp_keepintvl(&socket), Ok(INTERVAL));
        assert_eq!(sockopt::tcp_keepcnt(&socket), Ok(COUNT));
    }
}
