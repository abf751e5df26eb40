//! `runnel images`.

use std::process::ExitCode;

use anyhow::Context;
use connection::{Config, Server};

use crate::command::trust::TrustArgs;

/// List what a server publishes, or take names away
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    /// runnel://host[:port], or runnels:// for TLS
    #[arg(required = true)]
    server: Option<String>,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    trust: TrustArgs,

    #[cfg(feature = "full")]
    #[command(subcommand)]
    command: Option<Action>,
}

#[cfg(feature = "full")]
#[derive(clap::Subcommand)]
enum Action {
    Rm(crate::command::manage::RemoveArgs),
}

/// One line per tag: name, id, size.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "full")]
    if let Some(Action::Rm(args)) = &args.command {
        return crate::command::manage::remove(args);
    }
    let server = Server::parse(&args.server.unwrap_or_default())?;
    let listing = client::admin::list(&server, &args.trust.trust()?, Config::default().open_deadline)?;
    if args.json {
        outln!("{listing}");
        return Ok(ExitCode::SUCCESS);
    }
    let listing = parsed(&server, &listing)?;
    let images = listing["images"].as_array().map(Vec::as_slice).unwrap_or_default();
    if images.is_empty() {
        tell!("{server} publishes no images yet; `runnel push FILE {server}/NAME` publishes one");
    }
    for image in images {
        let name = image["name"].as_str().unwrap_or_default();
        let tag = image["tag"].as_str().unwrap_or_default();
        let id = units::printable_line(image["id"].as_str().unwrap_or_default().as_bytes());
        let bytes = image["file_bytes"].as_u64().unwrap_or_default();
        outln!(
            "{:<32} {id:.12} {:>12}",
            units::printable_line(format!("{name}:{tag}").as_bytes()),
            crate::progress::human(bytes)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses the answer of a server, which must be a JSON object.
pub fn parsed(server: &Server, answer: &str) -> anyhow::Result<serde_json::Value> {
    let wrong = || format!("{server}: the answer is not the JSON that a server of Runnel gives");
    let answer: serde_json::Value = serde_json::from_str(answer).with_context(wrong)?;
    anyhow::ensure!(answer.is_object(), wrong());
    Ok(answer)
}
