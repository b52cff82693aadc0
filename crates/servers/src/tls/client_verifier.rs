//! Accepts clients with a certificate from a trusted CA and, if names are configured, with one of these names.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;
use webpki::EndEntityCert;

/// Whether clients must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certificates {
    Required,
    /// Those who have none may connect, too.
    Offered,
}

/// The check of rustls, followed by that of names.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    by_authority: Arc<dyn ClientCertVerifier>,
    /// A certificate must have one of these alternative names; empty accepts all.
    names: Vec<String>,
    certificates: Certificates,
}

impl ClientVerifier {
    /// # Errors
    /// If a CA certificate is not valid.
    pub(super) fn new(
        authorities: Vec<CertificateDer<'static>>,
        names: Vec<String>,
        certificates: Certificates,
        provider: Arc<CryptoProvider>,
    ) -> anyhow::Result<ClientVerifier> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority)?;
        }
        let by_authority =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        Ok(ClientVerifier { by_authority, names, certificates })
    }

    fn is_named(&self, certificate: &CertificateDer<'_>) -> Result<bool, Error> {
        if self.names.is_empty() {
            return Ok(true);
        }
        let certificate = EndEntityCert::try_from(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let is_allowed_dns =
            |name: &str| self.names.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
        let is_allowed_uri = |name: &str| self.names.iter().any(|allowed| allowed == name);
        Ok(certificate.valid_dns_names().any(is_allowed_dns)
            || certificate.valid_uri_names().any(is_allowed_uri))
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.certificates == Certificates::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.by_authority.verify_client_cert(end_entity, intermediates, now)?;
        if !self.is_named(end_entity)? {
            return Err(Error::InvalidCertificate(CertificateError::NotValidForName));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}
