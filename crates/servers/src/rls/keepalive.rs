//! TCP keepalive: closes connections whose peers are gone without notice.

use rustix::io;
use rustix::net::sockopt;
use std::time::Duration;
use tokio::net::TcpStream;

/// The kernel probes a silent peer after a minute and then every 15 s, and closes the connection after four
/// probes without an answer, two minutes after the last sign of the peer.
const IDLE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(15);
const COUNT: u32 = 4;

pub(super) fn enable(socket: &TcpStream) -> io::Result<()> {
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
    async fn keepalive_is_enabled() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        enable(&socket).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket), Ok(IDLE));
        assert_eq!(sockopt::tcp_keepintvl(&socket), Ok(INTERVAL));
        assert_eq!(sockopt::tcp_keepcnt(&socket), Ok(COUNT));
    }
}
