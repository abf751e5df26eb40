//! `runnel trust`, and the options by which every command that connects trusts a server.

#[cfg(feature = "full")]
mod authority;
#[cfg(feature = "full")]
mod draft;
#[cfg(feature = "full")]
mod key_folder;
#[cfg(feature = "full")]
mod names;
mod options;
#[cfg(feature = "full")]
mod publisher;
#[cfg(feature = "full")]
mod show;
#[cfg(feature = "full")]
mod tls;

#[cfg(feature = "full")]
use std::process::ExitCode;

pub use options::TrustArgs;
#[cfg(feature = "full")]
pub use {key_folder::PassphraseArgs, key_folder::configured_passphrase, publisher::sign_push};

/// Make what servers and devices know each other by, and sign the names of images
#[cfg(feature = "full")]
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[cfg(feature = "full")]
#[derive(clap::Subcommand)]
enum Action {
    #[command(flatten)]
    Names(names::Action),
    Tls(tls::Args),
}

/// Does what the subcommand says.
#[cfg(feature = "full")]
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Names(action) => names::run(action),
        Action::Tls(args) => tls::run(args),
    }
}
