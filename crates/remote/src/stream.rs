//! From settings to a stream: TCP, a Unix socket, TLS.

use crate::any_name::AnyName;
use crate::settings::{Address, Settings, Tls};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens streams.
pub(crate) struct Streams {
    tls: Option<TlsConnector>,
}

impl Streams {
    pub(crate) fn new(settings: &Settings) -> Result<Streams, String> {
        Ok(Streams { tls: settings.tls.as_ref().map(connector).transpose()? })
    }

    pub(crate) async fn open(&self, address: &Address) -> std::io::Result<Box<dyn Stream>> {
        let (host, stream) = match address {
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                (host, TcpStream::connect((host.as_str(), *port)).await?)
            }
        };
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => {
                let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }
}

fn connector(tls: &Tls) -> Result<TlsConnector, String> {
    let certificates = |what: &str, pem: &[u8]| {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(format!("{what}: no certificate in PEM")),
            Err(error) => Err(format!("{what}: {error}")),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the authorities of the servers", &tls.ca)? {
        roots
            .add(certificate)
            .map_err(|error| format!("the authorities of the servers: {error}"))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match tls.skips_hostname {
        false => builder.with_root_certificates(roots),
        true => {
            let verifier = AnyName::new(roots, provider)?;
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates("the client's certificate", certificate)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| "the client's key: no private key in PEM".to_owned())?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                format!("the client's certificate and key do not go together: {error}")
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
