//! `runnel token`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use serde_json::json;
use server::{TokenFile, TokenInfo};

use crate::command::time::{TIME, time};
use crate::failure;

/// Make, list and revoke the tokens by which a server knows its clients
///
/// The server sees the change by itself, and closes the connections of a token that is revoked. A
/// client gives its token with --token-file or the variable RUNNEL_TOKEN.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token and print it; it cannot be seen again
    Create(CreateArgs),
    /// List tokens, without what is secret of them
    List(ListArgs),
    /// Revoke tokens
    Revoke(RevokeArgs),
}

/// Which server, and how to print.
#[derive(clap::Args)]
struct CommonArgs {
    /// The access file of the server (serve --access)
    #[arg(long, value_name = "FILE", default_value = "access.toml")]
    access: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct CreateArgs {
    /// The principal whose rights the token has: a [principal.NAME] of the access file
    #[arg(long, value_name = "NAME")]
    principal: String,

    /// How long it is good: a number with s, m, h, d or w behind it, or `never`
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = lifetime)]
    expires: Lifetime,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(clap::Args)]
struct RevokeArgs {
    /// Tokens, as `runnel token list` names them
    #[arg(value_name = "ID", required_unless_present = "principal")]
    ids: Vec<String>,

    /// All tokens of this principal
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    principal: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// How long a token is good; `None` until it is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime(Option<Duration>);

/// Does what was asked for.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Action::Create(args) => create(&args),
        Action::List(args) => list(&args),
        Action::Revoke(args) => revoke(&args),
    }
}

fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let now = now();
    let expires = args.expires.0.map(|time| now.saturating_add(time.as_secs()));
    let mut file = open(&args.common)?;
    let issued = file.create(&args.principal, now, expires).map_err(wrong)?;
    let token = issued.token.reveal();
    if args.common.json {
        let TokenInfo { id, principal, created, expires } = &issued.info;
        let answer =
            json!({ "token": token, "id": id, "principal": principal, "created": created, "expires": expires });
        outln!("{answer}");
    } else {
        outln!("{token}");
        tell!("token {} of {}, {}", issued.info.id, args.principal, ends(issued.info.expires, now));
        tell!("hint: it is not shown again; a client gives it with --token-file FILE, or in RUNNEL_TOKEN");
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let all = open(&args.common)?.list();
    print(&args.common, &all)
}

fn revoke(args: &RevokeArgs) -> anyhow::Result<ExitCode> {
    let mut file = open(&args.common)?;
    let all = file.list();
    if let Some(unknown) = args.ids.iter().find(|id| all.iter().all(|info| info.id != **id)) {
        let access = args.common.access.display();
        return Err(failure::not_found(format!(
            "there is no token {unknown}\nhint: `runnel token list --access {access}` lists them"
        )));
    }
    let of_principal = |info: &TokenInfo| args.principal.as_ref().is_some_and(|name| *name == info.principal);
    let revoked = file.revoke(|info| args.ids.contains(&info.id) || of_principal(info)).map_err(wrong)?;
    if let Some(principal) = args.principal.as_ref().filter(|_| revoked.is_empty()) {
        let access = args.common.access.display();
        return Err(failure::not_found(format!(
            "{principal} has no tokens\nhint: `runnel token list --access {access}` lists them"
        )));
    }
    print(&args.common, &revoked)?;
    if !args.common.json {
        tell!("revoked: {}", revoked.len());
    }
    Ok(ExitCode::SUCCESS)
}

fn open(common: &CommonArgs) -> anyhow::Result<TokenFile> {
    TokenFile::open(&common.access).map_err(wrong)
}

fn wrong(error: server::AccessError) -> anyhow::Error {
    server::ServerError::from(error).into()
}

fn print(common: &CommonArgs, tokens: &[TokenInfo]) -> anyhow::Result<ExitCode> {
    if common.json {
        outln!("{}", serde_json::to_string(tokens)?);
        return Ok(ExitCode::SUCCESS);
    }
    let now = now();
    for info in tokens {
        outln!("{}  {:<24} {}", info.id, units::printable_line(info.principal.as_bytes()), ends(info.expires, now));
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// When a token ends, in words.
fn ends(expires: Option<u64>, now: u64) -> String {
    const HOUR: u64 = 3600;
    match expires.map(|expires| expires.saturating_sub(now)) {
        None => "good until it is revoked".to_owned(),
        Some(0) => "has expired".to_owned(),
        Some(seconds @ 1..HOUR) => format!("good for {} min", seconds.div_ceil(60)),
        Some(seconds) if seconds < 48 * HOUR => format!("good for {} h", seconds / HOUR),
        Some(seconds) => format!("good for {} days", seconds / (24 * HOUR)),
    }
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    match time(text) {
        Ok(time) if !time.is_zero() => Ok(Lifetime(Some(time))),
        _ => Err(format!("{text:?} is no time: write {TIME}, or never")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_and_mistakes_are_named() {
        let seconds = |seconds| Ok(Lifetime(Some(Duration::from_secs(seconds))));
        assert_eq!(lifetime("90s"), seconds(90));
        assert_eq!(lifetime("30d"), seconds(30 * 86_400));
        assert_eq!(lifetime("2w"), seconds(14 * 86_400));
        assert_eq!(lifetime("never"), Ok(Lifetime(None)));
        for wrong in ["", "d", "0d", "30", "1ö"] {
            assert!(lifetime(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(ends(Some(100), 40), "good for 1 min");
        assert_eq!(ends(Some(40), 100), "has expired");
        assert_eq!(ends(Some(90 * 86_400), 0), "good for 90 days");
    }
}
