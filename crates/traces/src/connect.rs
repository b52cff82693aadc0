//! The connection to the collector: TCP, and TLS for https.

use crate::settings::{Protocol, Settings};
use anyhow::Context as _;
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

/// Connects to one collector.
#[derive(Clone)]
pub(crate) struct Connector {
    host: Arc<str>,
    port: u16,
    /// None for http.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

trait Io: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Io for S {}

pub(crate) struct Stream(Pin<Box<dyn Io>>);

impl Connector {
    /// Reads the files of TLS, if the collector is at an https URL.
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Connector> {
        let host = settings.endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_tls = settings.endpoint.scheme_str() == Some("https");
        let tls = match is_tls {
            true => {
                let name = ServerName::try_from(host.to_owned());
                let name = name.with_context(|| format!("{host:?} is no name of a server"))?;
                let protocol: &[u8] = match settings.protocol {
                    Protocol::Grpc => b"h2",
                    Protocol::HttpProtobuf => b"http/1.1",
                };
                let config = settings.tls.config(protocol, "OTEL_EXPORTER_OTLP_CERTIFICATE")?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
            false => None,
        };
        let port = settings.endpoint.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Connector { host: host.into(), port, tls })
    }

    async fn connect(self) -> io::Result<TokioIo<Stream>> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        stream.set_nodelay(true)?;
        let stream: Pin<Box<dyn Io>> = match self.tls {
            None => Box::pin(stream),
            Some((tls, name)) => Box::pin(tls.connect(name, stream).await?),
        };
        Ok(TokioIo::new(Stream(stream)))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(context)
    }
}
