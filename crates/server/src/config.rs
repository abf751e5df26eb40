//! Settings of a server.

mod access;
mod learning;
mod shares;
mod signed;
mod volume;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use store::{Sharing, Store, StoreError};

pub use access::{AccessConfig, AuditConfig};
pub use learning::{LearningConfig, Provider};
pub(crate) use shares::RECEIVED_FREE_BYTES;
pub use shares::Shares;
pub use signed::TimestampKey;
pub use volume::VolumeConfig;

use crate::error::ServerError;
use crate::log::Logger;

/// Where images are kept.
#[derive(Clone)]
pub enum StoreAt {
    /// In a folder, opened as a [`store::Local`].
    Folder(PathBuf),
    /// In a store the caller opened.
    Open(Arc<dyn Store>),
    /// In a store that the server opens when it starts, after it gave up what it does not need.
    Later(Arc<dyn Fn() -> Result<Arc<dyn Store>, StoreError> + Send + Sync>),
}

impl std::fmt::Debug for StoreAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreAt::Folder(path) => write!(f, "Folder({})", path.display()),
            StoreAt::Open(_) => f.write_str("Open"),
            StoreAt::Later(_) => f.write_str("Later"),
        }
    }
}

/// The PEM files of a server that speaks TLS. They are read when it starts, when one of them
/// changes, and by [`crate::Reloader::reload`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate, then those that lead to an authority the devices trust.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of client certificates. If given, every client must show one that they, or those
    /// of `push_authorities`, issued.
    pub client_authorities: Option<PathBuf>,
    /// Authorities of the certificates of those who may push images.
    pub push_authorities: Option<PathBuf>,
    /// Lists of the certificates of clients that these authorities have revoked.
    pub revocations: Vec<PathBuf>,
}

impl TlsFiles {
    /// All of them.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let authorities = [&self.client_authorities, &self.push_authorities].into_iter().flatten();
        [&self.certificate, &self.key].into_iter().chain(authorities).chain(&self.revocations).map(PathBuf::as_path)
    }
}

/// Who may push images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uploads {
    /// Nobody.
    Refused,
    /// Clients that show a certificate of [`TlsFiles::push_authorities`]. Without certificates of
    /// clients, whoever can connect: such a server listens on loopback addresses only.
    #[default]
    Trusted,
    /// Everyone who can connect, over any address.
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
    /// Who may do what.
    pub access: AccessConfig,
    /// Sign the timestamp of signed names anew before it expires.
    pub timestamp_key: Option<TimestampKey>,
    /// How many connections there may be, and what one may hold.
    pub connections: ConnectionConfig,
    /// Which images are open.
    pub images: ImageConfig,
    /// What is learned and pushed.
    pub learning: LearningConfig,
    /// Pushing images to the server.
    pub uploads: UploadConfig,
    /// How much work is done at once.
    pub work: WorkConfig,
    /// Bytes for all that arrives, replies, pushes, decoded blocks, metadata and what is learned
    /// together; see [`Shares`].
    pub memory_bytes_max: usize,
    /// How often idle runs are closed, learned actions saved and bundles ordered.
    pub upkeep_every: Duration,
    /// Limits and deadlines of the protocol.
    pub wire: wire::ServerConfig,
    /// Where log lines go.
    pub log: Logger,
}

/// Limits of connections.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Connections open at once; further ones are told that the server is busy.
    pub max: usize,
    /// Connections of one address (of one /64 for IPv6); `None` for a quarter of all, but no less
    /// than 64.
    pub per_address_max: Option<usize>,
    /// Bytes queued or being read for one connection before it is asked to wait.
    pub bytes_max: usize,
}

impl Default for ConnectionConfig {
    fn default() -> ConnectionConfig {
        ConnectionConfig { max: 1024, per_address_max: None, bytes_max: 4 << 20 }
    }
}

impl ConnectionConfig {
    /// Connections of one address when there are `all` in all. The default leaves most of them to
    /// others, and serves devices behind one address translator.
    pub(crate) fn per_address(&self, all: usize) -> usize {
        self.per_address_max.unwrap_or((all / 4).max(64)).clamp(1, all)
    }
}

/// Limits of images.
#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// Images whose metadata is kept in memory; those used longest ago make room, and are opened
    /// again when they are used.
    pub open_max: usize,
    /// What the server accepts of an image.
    pub limits: image::Limits,
}

impl Default for ImageConfig {
    fn default() -> ImageConfig {
        ImageConfig { open_max: 64, limits: image::Limits::ACCEPTED }
    }
}

/// Pushing images to the server.
#[derive(Clone, Debug)]
pub struct UploadConfig {
    /// Who may.
    pub from: Uploads,
    /// Largest image file that an upload may announce, in bytes.
    pub bytes_max: u64,
    /// Time uploads that lost their connection are kept for another try.
    pub kept: Duration,
}

impl Default for UploadConfig {
    fn default() -> UploadConfig {
        UploadConfig { from: Uploads::default(), bytes_max: 256 << 30, kept: Duration::from_secs(600) }
    }
}

/// Work that is done at once.
#[derive(Clone, Debug)]
pub struct WorkConfig {
    /// Blocks read from the store.
    pub reads_max: usize,
    /// Pieces of pushes built: work for the processor, which demands need too.
    pub builds_max: usize,
    /// Push streams compressed live, if there is memory for their encoders.
    pub live_streams_max: usize,
}

impl Default for WorkConfig {
    fn default() -> WorkConfig {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        WorkConfig { reads_max: 64, builds_max: processors, live_streams_max: 32 }
    }
}

/// The largest block, its decoded form and a few pieces must fit each share.
const MEMORY_BYTES_LEAST: usize = 32 << 20;

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
            access: AccessConfig::default(),
            timestamp_key: None,
            connections: ConnectionConfig::default(),
            images: ImageConfig::default(),
            learning: LearningConfig::default(),
            uploads: UploadConfig::default(),
            work: WorkConfig::default(),
            memory_bytes_max: 256 << 20,
            upkeep_every: Duration::from_secs(1),
            wire: wire::ServerConfig::default(),
            log: Logger::stderr(),
        }
    }

    /// How [`Config::memory_bytes_max`] is divided.
    pub fn shares(&self) -> Shares {
        Shares::of(self.memory_bytes_max)
    }

    /// Servers that neither take uploads nor learn nor sign may serve one folder together.
    pub(crate) fn sharing(&self) -> Sharing {
        let writes = self.uploads.from != Uploads::Refused || self.learning.learns() || self.timestamp_key.is_some();
        if writes { Sharing::Alone } else { Sharing::Readers }
    }

    /// Refuses volumes that cannot be served.
    pub(crate) fn check_volumes(&self) -> Result<(), ServerError> {
        let store = match &self.store {
            StoreAt::Folder(folder) => Some(folder.as_path()),
            StoreAt::Open(_) | StoreAt::Later(_) => None,
        };
        volume::check(&self.volumes, store)
    }

    /// Refuses settings that cannot work, that would let strangers replace images, or let whoever
    /// is on the way to a device change what it writes.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        let knows_clients = |files: &TlsFiles| files.client_authorities.is_some() || files.push_authorities.is_some();
        let is_local = self.listen.ip().to_canonical().is_loopback();
        let is_open = self.uploads.from == Uploads::Trusted && self.access.rules.is_none();
        if is_open && !is_local && !self.tls.as_ref().is_some_and(knows_clients) {
            return Err(ServerError::Exposed { address: self.listen });
        }
        let is_plain = self.tls.is_none() && !is_local && !self.access.insecure;
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
        least("the memory of a connection in bytes", self.connections.bytes_max, CONNECTION_BYTES_LEAST)?;
        least("the number of connections", self.connections.max, 1)?;
        least("the number of open images", self.images.open_max, 1)?;
        least("the number of reads at once", self.work.reads_max, 1)?;
        least("the number of pieces built at once", self.work.builds_max, 1)?;
        least("the interval of upkeep in milliseconds", self.upkeep_every.as_millis() as usize, 1)
    }
}
