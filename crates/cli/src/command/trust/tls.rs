//! `runnel trust tls`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::authority::{Authority, SERVER, device_name, server_name};
use crate::failure;

/// Make an authority of your own, and TLS certificates of a server and its devices
///
/// The folder gets ca.pem and ca.key, server.pem and server.key, NAME.pem and NAME.key of each
/// device, and revoked.pem, the list of what was revoked. Run the command again for further
/// devices, for new certificates before the old ones run out, and to revoke some. Servers and
/// devices that run take new files up by themselves.
#[derive(clap::Args)]
pub struct Args {
    /// The folder; made if it is not there. Whoever reads ca.key in it can be any server and device
    folder: PathBuf,

    /// Make a certificate of the server, for the names and IP addresses by which devices know it;
    /// needed the first time
    #[arg(long, value_name = "NAME[,IP]", value_delimiter = ',', value_parser = server_name)]
    server: Vec<String>,

    /// Make a certificate of a device; can be given several times
    #[arg(long, value_name = "NAME", value_parser = device_name)]
    device: Vec<String>,

    /// Revoke all certificates that a device, or `server`, has so far; can be given several times
    #[arg(long, value_name = "NAME")]
    revoke: Vec<String>,

    /// Days for which new certificates are good
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// Makes what is asked for, and prints what to do with it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = args.folder.display();
    if args.server.is_empty() && !args.folder.join("certificates.json").exists() {
        return Err(failure::usage(format!(
            "{folder} has no authority yet\nhint: name the server: `runnel trust tls {folder} --server NAME[,IP]`"
        )));
    }
    let time = Duration::from_secs(u64::from(args.days) * 86_400);
    let mut authority = Authority::open(&args.folder)?;
    // First, so that who is named twice gets a certificate that is good.
    for name in &args.revoke {
        authority.revoke(name)?;
        tell!("revoked {name}: {folder}/revoked.pem has it");
    }
    if !args.server.is_empty() {
        authority.issue_server(&args.server, time)?;
        tell!("made {folder}/{SERVER}.pem and {SERVER}.key for {}", args.server.join(", "));
    }
    for name in &args.device {
        authority.issue_device(name, time)?;
        tell!("made {folder}/{name}.pem and {name}.key");
    }
    if !args.server.is_empty() {
        outln!("# on the server");
        outln!(
            "runnel serve /srv/runnel --listen 0.0.0.0:7327 --read-only --tls-cert {folder}/{SERVER}.pem \
             --tls-key {folder}/{SERVER}.key --client-ca {folder}/ca.pem --crl {folder}/revoked.pem"
        );
    }
    let host = match authority.server().first() {
        Some(address) if address.contains(':') => format!("[{address}]"),
        Some(name) => name.clone(),
        None => "SERVER".to_owned(),
    };
    for name in &args.device {
        outln!("# on {name}, with ca.pem, {name}.pem and {name}.key");
        outln!("runnel mount runnels://{host}/IMAGE /mnt --ca ca.pem --cert {name}.pem --key {name}.key");
    }
    Ok(ExitCode::SUCCESS)
}
