//! `runnel images rm`, `tag`, `retain` and `gc`: what a server keeps.

use std::process::ExitCode;
use std::time::Duration;

use connection::{Server, Target, Trust};
use serde_json::Value;
use wire::ManageAsk;

use crate::command::images::parsed;
use crate::command::time::time;
use crate::command::trust::TrustArgs;
use crate::failure;
use crate::progress::{counted, human};

/// Time for an answer. A server collects for some seconds at a time.
const DEADLINE: Duration = Duration::from_secs(120);

/// How to ask, and how to print.
#[derive(clap::Args)]
struct CommonArgs {
    /// Print the server's JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Take names away from a server; `runnel gc` deletes the images that have none any more
///
/// Who may publish under a name may take it away. Devices that have the image mounted keep it until
/// they unmount it.
#[derive(clap::Args)]
pub struct RemoveArgs {
    /// runnel://host/name:tag
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// Give an image on a server another name
///
/// If the name stands for another image, it is switched in one step. Signed names are signed with
/// `runnel trust sign`.
#[derive(clap::Args)]
pub struct TagArgs {
    /// runnel://host/name[:tag], or runnel://host/@id
    image: String,
    /// The other name on the same server: name[:tag]
    name: String,

    #[command(flatten)]
    common: CommonArgs,
}

/// Say which earlier versions of names `runnel gc` keeps, or show the rules
///
/// Of the rules that match a name the one that was given last counts. Without one, only what names
/// stand for now is
/// kept, and what devices have mounted.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").multiple(true))]
pub struct RetainArgs {
    /// runnel://host[:port], or runnels:// for TLS
    server: String,
    /// Names to which the rule applies: NAME or NAME:TAG, with `*` for any text
    #[arg(requires = "what")]
    pattern: Option<String>,
    /// Keep so many of the newest versions, the present one among them
    #[arg(long, value_name = "N", group = "what", requires = "pattern")]
    keep: Option<u32>,
    /// Keep each version for so long after a newer one has come: a number with s, m, h, d or w
    /// behind it
    #[arg(long = "for", value_name = "TIME", value_parser = time, group = "what", requires = "pattern")]
    period: Option<Duration>,
    /// Take the rule for exactly this pattern away
    #[arg(long, group = "what", conflicts_with_all = ["keep", "period"], requires = "pattern")]
    none: bool,

    #[command(flatten)]
    common: CommonArgs,
}

/// Delete images that nobody wants from a server's store, with what was learned and made of them
///
/// An image stays while a name stands for it, while a rule of `runnel retain` keeps it, and while a
/// device has it
/// mounted. What is found without all that is deleted by the first `gc` after the time of grace, so
/// run it by a timer.
#[derive(clap::Args)]
pub struct GcArgs {
    /// runnel://host[:port], or runnels:// for TLS
    server: String,
    /// Change nothing, and say what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// How long an image stays after it was found unwanted, at least 10m: a number with s, m, h, d
    /// or w behind it
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "24h")]
    grace: Duration,

    #[command(flatten)]
    common: CommonArgs,
}

/// Commands of operators.
#[derive(clap::Subcommand)]
pub enum Command {
    Tag(TagArgs),
    Retain(RetainArgs),
    Gc(GcArgs),
}

/// Does what an operator asks for.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Tag(args) => tag(args),
        Command::Retain(args) => retain(args),
        Command::Gc(args) => gc(args),
    }
}

/// `runnel images rm`.
pub fn remove(args: &RemoveArgs) -> anyhow::Result<ExitCode> {
    let trust = args.common.trust.trust()?;
    for text in &args.names {
        let (server, name) = image(text)?;
        let answer = ask(&server, &trust, &name, ManageAsk::Remove)?;
        match args.common.json {
            true => outln!("{answer}"),
            false => outln!("{server}/{name} is gone; it was image {:.12}", shown(&answer["id"])),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `runnel tag`.
fn tag(args: &TagArgs) -> anyhow::Result<ExitCode> {
    let (server, of) = image(&args.image)?;
    let answer = ask(&server, &args.common.trust.trust()?, &args.name, ManageAsk::Tag { of })?;
    match args.common.json {
        true => outln!("{answer}"),
        false => outln!("{server}/{} is image {}", shown(&answer["name"]), shown(&answer["id"])),
    }
    Ok(ExitCode::SUCCESS)
}

/// `runnel retain`.
fn retain(args: &RetainArgs) -> anyhow::Result<ExitCode> {
    let (server, trust) = (Server::parse(&args.server)?, args.common.trust.trust()?);
    let (pattern, what) = match &args.pattern {
        Some(pattern) => {
            let (keep, seconds) = (args.keep.unwrap_or_default(), args.period.unwrap_or_default().as_secs());
            if !args.none && keep == 0 && seconds == 0 {
                return Err(failure::usage("a rule keeps something: give --keep or --for, or --none to take it away"));
            }
            (pattern.as_str(), ManageAsk::Retain { keep, seconds })
        }
        None => ("", ManageAsk::Rules),
    };
    let answer = ask(&server, &trust, pattern, what)?;
    if args.common.json {
        outln!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    let rules = answer["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rules.is_empty() {
        tell!("{server} keeps no earlier versions; `runnel retain {server} PATTERN --keep 3` says so");
    }
    for rule in rules {
        let (keep, seconds) = (number(&rule["keep"]), number(&rule["keep_seconds"]));
        let mut parts = Vec::new();
        if keep > 0 {
            parts.push(format!("the newest {keep}"));
        }
        if seconds > 0 {
            parts.push(format!("each for {} after the next", span(seconds)));
        }
        outln!("{:<32} {}", shown(&rule["names"]), parts.join(", and "));
    }
    Ok(ExitCode::SUCCESS)
}

/// `runnel gc`.
fn gc(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let (server, trust) = (Server::parse(&args.server)?, args.common.trust.trust()?);
    let what = ManageAsk::Collect { grace: args.grace.as_secs(), dry_run: args.dry_run };
    let bar = crate::progress::bytes(0, "collecting, images deleted:");
    let (mut removed, mut freed) = (0, 0);
    let last = loop {
        let answer = ask(&server, &trust, "", what.clone())?;
        if args.common.json {
            outln!("{answer}");
        }
        removed += number(&answer["removed_count"]);
        freed += number(&answer["freed_bytes"]);
        bar.set_position(removed);
        let named = answer["removed"].as_array().map(Vec::as_slice).unwrap_or_default();
        let verb = if args.dry_run { "would delete" } else { "deleted" };
        for image in named.iter().filter(|_| !args.common.json) {
            let (name, bytes) = (image["name"].as_str().unwrap_or("no name"), number(&image["bytes"]));
            let name = units::printable_line(name.as_bytes());
            bar.suspend(|| {
                crate::progress::line(format_args!("{verb} {:.12} ({name}), {}", shown(&image["id"]), human(bytes)))
            })?;
        }
        if answer["is_cut"] != Value::Bool(true) {
            break answer;
        }
    };
    bar.finish_and_clear();
    if !args.common.json {
        let done = if args.dry_run { "would be deleted" } else { "deleted" };
        let (wanted, waiting) = (number(&last["wanted"]), number(&last["waiting_count"]));
        outln!(
            "{} {done}, {} free; {} wanted, {waiting} in the time of grace",
            counted(removed, "image"),
            human(freed),
            counted(wanted, "image")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The server and the name of an image there.
fn image(text: &str) -> anyhow::Result<(Server, String)> {
    match Target::parse(text)? {
        Target::Remote(remote) => Ok((remote.server, remote.image.to_string())),
        _ => Err(failure::usage(format!("{text}: give runnel://host/name[:tag]"))),
    }
}

fn ask(server: &Server, trust: &Trust, name: &str, what: ManageAsk) -> anyhow::Result<Value> {
    parsed(server, &client::admin::manage(server, trust, name, what, DEADLINE)?)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// A text of the server's, on a terminal.
fn shown(value: &Value) -> String {
    units::printable_line(value.as_str().unwrap_or_default().as_bytes()).into_owned()
}

/// A span of time in the largest unit that divides it.
fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(length, _)| seconds.is_multiple_of(*length)).unwrap_or((1, "s"));
    format!("{}{}", seconds / unit.0, unit.1)
}
