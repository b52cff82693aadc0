//! Certificates for tests of TLS: an authority that signs what a server or a client shows.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// An authority, which signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM.
    pub pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Debug)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// Makes one.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new() -> anyhow::Result<Authority> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        // OpenSSL takes a certificate with the name of its issuer for one that signed itself.
        params.distinguished_name.push(DnType::CommonName, "the authority of a test");
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem })
    }

    /// Signs a certificate for servers and clients with this alternative name.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn sign(&self, name: SanType) -> anyhow::Result<Identity> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.subject_alt_names = vec![name];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { cert, key: key.serialize_pem() })
    }
}

/// A DNS name.
///
/// # Errors
/// When it is none.
pub fn dns(name: &str) -> anyhow::Result<SanType> {
    Ok(SanType::DnsName(name.try_into()?))
}

/// A URI.
///
/// # Errors
/// When it is none.
pub fn uri(name: &str) -> anyhow::Result<SanType> {
    Ok(SanType::URI(name.try_into()?))
}

/// An IP address.
///
/// # Errors
/// When it is none.
pub fn ip(address: &str) -> anyhow::Result<SanType> {
    Ok(SanType::IpAddress(address.parse()?))
}
