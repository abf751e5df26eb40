//! The names that a certificate is for.

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Names of one certificate that are looked at: workloads have a few.
const NAMES_MAX: usize = 64;

/// Longest of these names, as SPIFFE has it.
const NAME_BYTES_MAX: usize = 2048;

/// DNS names and URIs of a certificate that the handshake has checked.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let names = certificate.valid_uri_names().chain(certificate.valid_dns_names());
    names.filter(|name| name.len() <= NAME_BYTES_MAX).take(NAMES_MAX).map(str::to_owned).collect()
}
