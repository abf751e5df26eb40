//! What a server can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::{Sharing, Store};

use crate::{Logger, Provider, ServerError, VolumeConfig};

/// Where images are kept.
#[derive(Clone)]
pub enum StoreAt {
    /// In a folder, opened as a [`store::Local`].
    Folder(PathBuf),
    /// In a store the caller opened.
    Open(Arc<dyn Store>),
}

impl std::fmt::Debug for StoreAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreAt::Folder(path) => write!(f, "Folder({})", path.display()),
            StoreAt::Open(_) => f.write_str("Open"),
        }
    }
}

/// The PEM files of a server that speaks TLS. They are read when it starts, and by [`crate::Reloader::reload`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate, then those that lead to an authority the devices trust.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of client certificates. If given, every client must show one that they, or those of
    /// `push_authorities`, issued.
    pub client_authorities: Option<PathBuf>,
    /// Authorities of the certificates of those who may push images.
    pub push_authorities: Option<PathBuf>,
}

/// Who may push images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uploads {
    /// Nobody.
    Refused,
    /// Who shows a certificate of [`TlsFiles::push_authorities`]. Without certificates of clients, whoever can connect: such a
    /// server listens on loopback addresses only.
    #[default]
    Trusted,
    /// Whoever can connect, over any address.
    Anyone,
}

/// Settings of a server. [`Config::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where images, tags and what was learned are kept.
    pub store: StoreAt,
    /// Folders that are served as volumes.
    pub volumes: Vec<VolumeConfig>,
    /// The address to listen on; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Take encrypted connections, and only those.
    pub tls: Option<TlsFiles>,
    /// Constants of the Predictor; `predict.mode` chooses between streaming and the paper's one segment per round trip.
    pub predict: predict::Config,
    /// Learn and push at all. Without it the server only answers demands: the baseline to compare with.
    pub learning: bool,
    /// What is in memory before it is asked for; without learning nothing is, whatever this says.
    pub provider: Provider,
    /// Who may push images.
    pub uploads: Uploads,
    /// Serve volumes for writing over any address without TLS.
    pub insecure: bool,
    /// Largest image file that an upload may announce, in bytes.
    pub upload_bytes_max: u64,
    /// Connections open at once; further ones are told that the server is busy.
    pub connections_max: usize,
    /// Connections of one address (of one /64 for IPv6); `None` for a quarter of all, but no less than 64.
    pub connections_per_address_max: Option<usize>,
    /// Bytes queued or being read for one connection before it is asked to wait.
    pub connection_bytes_max: usize,
    /// Bytes for all that arrives, replies, pushes, decoded blocks, metadata and what is learned
    /// together; see [`Shares`].
    pub memory_bytes_max: usize,
    /// Images whose metadata is kept in memory; those used longest ago make room, and are opened again when they are used.
    pub images_open_max: usize,
    /// Push streams compressed live at once, if there is memory for their encoders.
    pub live_streams_max: usize,
    /// Blocks read from the store at once.
    pub reads_max: usize,
    /// Pieces of pushes built at once: work for the processor, which demands need too.
    pub builds_max: usize,
    /// Normalised variance over which the Provider keeps a segment in memory (0 to 1).
    pub provider_threshold: f64,
    /// Segments the Provider reads ahead of a push (SYSFLOW: three).
    pub provider_ahead: usize,
    /// How often idle runs are closed, learned actions saved and bundles ordered.
    pub upkeep_every: Duration,
    /// Time uploads that lost their connection are kept for another try.
    pub upload_kept: Duration,
    /// What the server accepts of an image.
    pub image_limits: image::Limits,
    /// Limits and deadlines of the protocol.
    pub wire: wire::ServerConfig,
    /// Where log lines go.
    pub log: Logger,
}

/// How the memory of a server is divided. Prediction must not starve demand, so each has its own share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// What arrives, until it is taken up or answered: a sixteenth. Of each connection the first
    /// [`RECEIVED_FREE_BYTES`] do not count, as its buffers do not: requests are small and must not
    /// wait.
    pub received: usize,
    /// Replies to demands, queued or being read: five thirty-second parts.
    pub replies: usize,
    /// Pieces of push streams, queued or being built: three thirty-second parts.
    pub pushes: usize,
    /// Encoders of pushes that are compressed live: three thirty-second parts.
    pub encoders: usize,
    /// Decoded blocks from which pages are built: three thirty-second parts.
    pub decoded: usize,
    /// Decoded blocks that the Provider holds from the start: a sixteenth.
    pub provider: usize,
    /// What devices were sent, so that it is not pushed again: a thirty-second part.
    pub devices: usize,
    /// What is learned of open images: a sixteenth.
    pub learned: usize,
    /// What is learned of volumes: a sixteenth, the same part of it for each.
    pub profiles: usize,
    /// Metadata of open images and of uploads: nine thirty-second parts.
    pub metadata: usize,
}

/// The largest block, its decoded form and a few pieces must fit each share.
const MEMORY_BYTES_LEAST: usize = 32 << 20;

/// What a connection may hold of what arrived without asking for memory.
pub(crate) const RECEIVED_FREE_BYTES: usize = 16 << 10;

/// Two of the largest replies.
const CONNECTION_BYTES_LEAST: usize = 2 << 20;

impl Config {
    /// The defaults for this store and address.
    pub fn new(store: StoreAt, listen: SocketAddr) -> Config {
        Config {
            store,
            volumes: Vec::new(),
            listen,
            tls: None,
            predict: predict::Config::default(),
            learning: true,
            provider: Provider::default(),
            uploads: Uploads::default(),
            insecure: false,
            upload_bytes_max: 256 << 30,
            connections_max: 1024,
            connections_per_address_max: None,
            connection_bytes_max: 4 << 20,
            memory_bytes_max: 256 << 20,
            images_open_max: 64,
            live_streams_max: 32,
            reads_max: 64,
            builds_max: std::thread::available_parallelism().map_or(2, usize::from),
            provider_threshold: 0.5,
            provider_ahead: 3,
            upkeep_every: Duration::from_secs(1),
            upload_kept: Duration::from_secs(600),
            image_limits: image::Limits::ACCEPTED,
            wire: wire::ServerConfig::default(),
            log: Logger::stderr(),
        }
    }

    /// How [`Config::memory_bytes_max`] is divided.
    pub fn shares(&self) -> Shares {
        let all = self.memory_bytes_max;
        Shares {
            received: all / 16,
            replies: all / 32 * 5,
            pushes: all / 32 * 3,
            encoders: all / 32 * 3,
            decoded: all / 32 * 3,
            provider: all / 16,
            devices: all / 32,
            learned: all / 16,
            profiles: all / 16,
            metadata: all / 32 * 9,
        }
    }

    /// Servers that neither take uploads nor learn may serve one folder together.
    pub(crate) fn sharing(&self) -> Sharing {
        let learns = self.learning && !self.predict.frozen;
        if self.uploads != Uploads::Refused || learns { Sharing::Alone } else { Sharing::Readers }
    }

    /// Pages after a push that the Provider wants to know of.
    pub(crate) fn pages_ahead(&self) -> u32 {
        let segments = if self.provider.uses_segments() { self.provider_ahead as u32 } else { 0 };
        segments.saturating_mul(self.predict.segment_pages)
    }

    /// Connections of one address when there are `places` in all. The default
    /// leaves most places to others, and serves devices behind one address translator.
    pub(crate) fn connections_per_address(&self, places: usize) -> usize {
        self.connections_per_address_max.unwrap_or((places / 4).max(64)).clamp(1, places)
    }

    /// Refuses settings that cannot work, that would let strangers replace images, or let whoever is on the way to a device
    /// change what it writes.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        let knows_clients = |files: &TlsFiles| files.client_authorities.is_some() || files.push_authorities.is_some();
        let is_local = self.listen.ip().to_canonical().is_loopback();
        if self.uploads == Uploads::Trusted && !is_local && !self.tls.as_ref().is_some_and(knows_clients) {
            return Err(ServerError::Exposed { address: self.listen });
        }
        let is_plain = self.tls.is_none() && !is_local && !self.insecure;
        if let Some(volume) = self.volumes.iter().find(|volume| volume.writable).filter(|_| is_plain) {
            return Err(ServerError::ExposedVolume { name: volume.name.clone(), address: self.listen });
        }
        let least = |what, found: usize, min: usize| {
            if found >= min {
                return Ok(());
            }
            Err(ServerError::Config { what, found: found as u64, min: min as u64 })
        };
        least("the memory of the server in bytes", self.memory_bytes_max, MEMORY_BYTES_LEAST)?;
        least("the memory of a connection in bytes", self.connection_bytes_max, CONNECTION_BYTES_LEAST)?;
        least("the number of connections", self.connections_max, 1)?;
        least("the number of open images", self.images_open_max, 1)?;
        least("the number of reads at once", self.reads_max, 1)?;
        least("the number of pieces built at once", self.builds_max, 1)?;
        least("the interval of upkeep in milliseconds", self.upkeep_every.as_millis() as usize, 1)
    }
}
