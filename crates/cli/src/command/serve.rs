//! `runnel serve`.

mod confine;
mod store;
mod volume;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use server::{AccessConfig, AuditConfig, Config, LearningConfig, Provider, TimestampKey, TlsFiles, Uploads};

use crate::command::credential;
use crate::command::pack::is_image;
use crate::command::ready::ReadyFile;
use crate::command::sandboxed::{SandboxArgs, folders_of};
use crate::command::trust::configured_passphrase;
use crate::failure;

/// Publish the images of a store, and learn from the devices that use them
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  runnel serve /srv/runnel
  AWS_REGION=eu-central-1 runnel serve s3://images/prod --access access.toml --listen 0.0.0.0:7327
  AWS_ENDPOINT_URL=http://10.0.0.5:9000 AWS_ALLOW_HTTP=true runnel serve s3://images --store-cache /var/cache/images")]
pub struct Args {
    /// A folder, made if it is not there, or a place in object storage: s3://BUCKET/PREFIX,
    /// gs://… or az://…
    ///
    /// Image files put into it by hand are published as NAME:latest. Credentials of object storage
    /// come from the environment, as its other clients have them.
    #[arg(value_name = "STORE")]
    store: PathBuf,

    /// Address to listen on; port 0 lets the system choose
    ///
    /// By default only this machine can connect, and whoever does may push images. Any other
    /// address, such as 0.0.0.0:7327, needs --access, --client-ca or --push-ca, --read-only, or
    /// --allow-anonymous-push; and to serve volumes as rw, --tls-cert or --insecure.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7327", value_parser = listen_address)]
    listen: SocketAddr,

    /// Serve a folder of data files as a volume, read only unless it says rw; can be given several
    /// times
    ///
    /// BLOCK is the size of a data block, a power of two from 512 to 64K (default 4K). A volume
    /// that may be written keeps its journal in DIR/.runnel, or in the folder given here. QUOTA
    /// limits the sum of all file sizes.
    #[arg(long, value_name = "NAME=DIR[:ro|rw][,block=BLOCK][,journal=DIR][,quota=QUOTA]")]
    volume: Vec<volume::VolumeArg>,

    /// Sign the timestamp of signed names anew with this key before it expires (see `runnel trust`)
    ///
    /// NAME is that of a credential of the service. The passphrase of the key, if it has one, is
    /// read from the file that RUNNEL_TRUST_PASSPHRASE_FILE names.
    #[arg(long, value_name = "FILE|credential:NAME")]
    timestamp_key: Option<PathBuf>,

    /// Write the address to this file once the server listens
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    object_storage: store::StoreArgs,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    research: ResearchArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    learning: LearningArgs,
}

/// Access of clients.
#[derive(clap::Args)]
#[command(next_help_heading = "Who may connect")]
struct AccessArgs {
    /// Take encrypted connections only (runnels://), with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve only clients with a certificate issued by an authority in this file (PEM); pushing
    /// also needs --push-ca
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,

    /// Take pushes from clients with a certificate issued by an authority in this file (PEM), and
    /// from no others
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    push_ca: Option<PathBuf>,

    /// Refuse clients whose certificate stands in a list of revoked ones in this file (PEM); can be
    /// given several times
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    crl: Vec<PathBuf>,

    /// Let this file say who may do what, by certificates (of --client-ca), tokens and names; it is
    /// read again when it changes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["push_ca", "allow_anonymous_push"])]
    access: Option<PathBuf>,

    /// Write to this file who published what, who was refused, and who opened volumes for writing,
    /// one JSON object a line
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,

    /// Length at which the audit log becomes FILE.1, and another file begins, in MiB
    #[arg(long, value_name = "MIB", requires = "audit_log", value_parser = clap::value_parser!(u32).range(1..))]
    audit_log_size: Option<u32>,

    /// Refuse uploads; with --frozen or --no-learn too, several servers may share the folder
    #[arg(long, conflicts_with = "push_ca")]
    read_only: bool,

    /// Let everyone who can connect replace any image
    #[arg(long, conflicts_with_all = ["read_only", "client_ca", "push_ca"])]
    allow_anonymous_push: bool,

    /// Serve rw volumes to other machines without TLS, though others on the way can read and change
    /// what is sent
    #[arg(long)]
    insecure: bool,
}

/// Switches for experiments; none of them is in the help.
#[derive(clap::Args)]
struct ResearchArgs {
    /// How far to push ahead of a program at most, in KiB; 0 pushes one segment per round trip, as
    /// in the paper
    #[arg(long, hide = true, value_name = "KIB", default_value_t = 8192)]
    push_window: u64,

    /// Pages in a segment of an action
    #[arg(long, hide = true, value_name = "PAGES", default_value_t = 32)]
    segment_pages: u32,

    /// Seconds without a page after which an action under construction ends
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 3)]
    construction_timer: u64,

    /// Every so many pushes of an action, check in an audit run that all its pages are still used
    /// (0: never)
    #[arg(long, hide = true, value_name = "N", default_value_t = 8)]
    audit_every: u64,

    /// Variance of normalised block indices (0 to 0.25) over which a segment is kept in memory from
    /// the start
    #[arg(long, hide = true, value_name = "N", default_value_t = 0.04)]
    provider_threshold: f64,

    /// Segments read ahead of a push
    #[arg(long, hide = true, value_name = "N", default_value_t = 3)]
    provider_ahead: usize,

    /// What is in memory before it is asked for
    #[arg(long, hide = true, value_enum, value_name = "MODE", default_value_t = Mode::Bundle)]
    provider: Mode,

    /// Do not make bundles of learned actions: --provider nv-async
    #[arg(long, hide = true, conflicts_with = "provider")]
    no_bundles: bool,
}

/// Limits of the server.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Memory for all that devices make the server hold, in MiB; each connection takes some 15 KiB
    /// beside it
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(32..))]
    memory: u32,

    /// Connections at most
    #[arg(long, value_name = "N", default_value_t = 1024)]
    connections: usize,

    /// Connections at most from one address (from one /64 for IPv6) [default: a quarter of all, at
    /// least 64]
    #[arg(long, value_name = "N")]
    connections_per_address: Option<usize>,
}

/// Learning.
#[derive(clap::Args)]
#[command(next_help_heading = "Learning")]
struct LearningArgs {
    /// Answer demands only: neither learn nor push
    #[arg(long)]
    no_learn: bool,

    /// Push what was learned before, but learn nothing new
    #[arg(long, conflicts_with = "no_learn")]
    frozen: bool,
}

/// The address that a host and a port stand for.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.rsplit_once(':').map_or("", |(_, port)| port);
    if port.parse::<u16>().is_err() {
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        return Err(match is_number {
            true => format!("there is no port {port}; ports go up to 65535"),
            false => "there is no port; write HOST:PORT, such as localhost:7327".to_owned(),
        });
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("the host is not known: {error}"))?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

/// Refuses a file where the folder of the store is wanted.
fn check_store(store: &Path) -> anyhow::Result<()> {
    if !store.metadata().is_ok_and(|found| !found.is_dir()) {
        return Ok(());
    }
    let (file, folder) = (store.display(), folders_of([store]).swap_remove(0));
    let folder = folder.display();
    Err(failure::usage(match is_image(store) {
        true => format!(
            "{file} is an image, and serve takes the folder of a store\nhint: `runnel serve {folder}` serves all images of \
             its folder; `runnel push {file} runnel://HOST/NAME` puts it on a server that runs"
        ),
        false => format!("{file} is no folder, and serve takes the folder of a store\nhint: `runnel serve {folder}`"),
    }))
}

/// The key of timestamps. There is nobody to ask for its passphrase.
fn timestamp_key(place: &Path) -> anyhow::Result<TimestampKey> {
    let wrong = |problem: String| failure::usage(format!("the timestamp key, {}: {problem}", place.display()));
    let file = credential::path(place, credential::folder().as_deref()).map_err(wrong)?;
    Ok(TimestampKey { file, passphrase: configured_passphrase()? })
}

/// See [`Provider`].
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Nothing
    None,
    /// What the kernel makes of advice that the whole image will be needed
    Madvise,
    /// First and scattered segments; the segments after a push are read before it is sent
    Nv,
    /// The same, but they are read while it is on its way
    NvAsync,
    /// The same, and bundles of learned actions
    Bundle,
}

impl From<Mode> for Provider {
    fn from(mode: Mode) -> Provider {
        match mode {
            Mode::None => Provider::None,
            Mode::Madvise => Provider::Madvise,
            Mode::Nv => Provider::Nv,
            Mode::NvAsync => Provider::NvAsync,
            Mode::Bundle => Provider::Bundle,
        }
    }
}

impl AccessArgs {
    fn uploads(&self) -> Uploads {
        match (self.read_only, self.allow_anonymous_push) {
            (true, _) => Uploads::Refused,
            (_, true) => Uploads::Anyone,
            _ => Uploads::Trusted,
        }
    }

    fn rules(&self) -> AccessConfig {
        let bytes_max = self.audit_log_size.map_or(AuditConfig::BYTES_MAX, |mib| u64::from(mib) << 20);
        let audit = self.audit_log.clone().map(|file| AuditConfig { file, bytes_max });
        AccessConfig { rules: self.access.clone(), audit, insecure: self.insecure }
    }

    fn tls(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_authorities: self.client_ca.clone(),
            push_authorities: self.push_ca.clone(),
            revocations: self.crl.clone(),
        })
    }
}

impl ResearchArgs {
    fn apply(&self, learning: &mut LearningConfig, frozen: bool) {
        let predict = &mut learning.predict;
        predict.mode = predict::Mode::from_push_window(self.push_window);
        predict.segment_pages = self.segment_pages.clamp(2, units::SEGMENT_PAGES_MAX as u32);
        predict.construction_timer = Duration::from_secs(self.construction_timer);
        let segment_kib = u64::from(predict.segment_pages) * units::PAGE_BYTES as u64 / 1024;
        predict.lookahead_max = (self.push_window / segment_kib).clamp(1, 1 << 16) as u32;
        predict.lookahead_first = predict.lookahead_first.min(predict.lookahead_max);
        predict.audits.every = self.audit_every;
        predict.frozen = frozen;
        if self.audit_every == 0 || frozen {
            predict.audits = predict::Audits::NONE;
        }
        learning.provider_threshold = self.provider_threshold;
        learning.provider_ahead = self.provider_ahead;
        learning.provider = if self.no_bundles { Provider::NvAsync } else { self.provider.into() };
    }
}

/// Serves until SIGINT or SIGTERM; what was learned is saved. SIGHUP has certificates, keys and
/// access rules read again, though they did not change, and the audit log opened again.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let store = store::Chosen::of(&args.store, &args.object_storage)?;
    if store.place().is_none() {
        check_store(store.folder())?;
    }
    let mut config = Config::new(store.at(), args.listen);
    config.tls = args.access.tls();
    config.uploads.from = args.access.uploads();
    config.access = args.access.rules();
    config.timestamp_key = args.timestamp_key.as_deref().map(timestamp_key).transpose()?;
    args.research.apply(&mut config.learning, args.learning.frozen);
    config.memory_bytes_max = (args.limits.memory as usize) << 20;
    config.connections.max = args.limits.connections;
    config.connections.per_address_max = args.limits.connections_per_address;
    config.learning.enabled = !args.learning.no_learn;
    config.volumes = args.volume.iter().map(|volume| volume.0.clone()).collect();
    let ready = ReadyFile::open(args.ready_file.as_deref())?;
    let sandbox = confine::sandbox(&config, &store, &ready);
    let mut written = Ok(());
    let confine = || args.sandbox.enter_and_tell(&sandbox).map_err(std::io::Error::other);
    server::serve_blocking(config, confine, |address| {
        tell!("serving {store} on {address}");
        for volume::VolumeArg(volume) in &args.volume {
            let access = if volume.writable { "for reading and writing" } else { "for reading" };
            tell!("serving {} as volume {} {access}", volume.folder.display(), volume.name);
        }
        written = ready.announce(&format!("{address}\n"));
    })?;
    written?;
    Ok(ExitCode::SUCCESS)
}
