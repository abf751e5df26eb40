//! Whether a client that is connected would still be let in.

use tokio::sync::watch;
use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use super::files::Keys;

/// The certificates that a client showed, and the news about them.
pub(crate) struct Standing {
    keys: watch::Receiver<Keys>,
    /// Empty if it showed none.
    shown: Vec<CertificateDer<'static>>,
    /// When it showed them. They are judged as of then, so that nobody leaves because time went by:
    /// what runs out is asked for at the next handshake.
    at: UnixTime,
}

impl Standing {
    /// A client that was let in by the `keys` that were seen last.
    pub fn new(keys: watch::Receiver<Keys>, shown: Option<&[CertificateDer<'static>]>) -> Standing {
        Standing { keys, shown: shown.unwrap_or_default().to_vec(), at: UnixTime::now() }
    }

    /// Ready when new files refuse the client's certificate: it was revoked, or its authority is
    /// gone.
    pub async fn withdrawn(&mut self) {
        while !self.shown.is_empty() && self.keys.changed().await.is_ok() {
            if self.is_refused() {
                return;
            }
        }
        // A client without a certificate, or a server that ends.
        std::future::pending().await
    }

    fn is_refused(&mut self) -> bool {
        let keys = self.keys.borrow_and_update();
        let (Some(clients), Some((own, between))) = (&keys.clients, self.shown.split_first()) else { return false };
        // A list that is of no use is no reason to send everybody away.
        matches!(clients.verify_client_cert(own, between, self.at), Err(Error::InvalidCertificate(_)))
    }
}
