//! `runnel trust init|key|delegate|rotate|sign|remove|refresh|publish|show`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use connection::Server;
use image::Limits;
use serde_json::json;
use signing::{Delegation, Lifetimes, PublicKey, Repository, SigningError, SigningKey, TOP_LEVEL};
use trust::repository::is_name;

use super::TrustArgs;
use super::draft::{Drafts, Outcome};
use super::key_folder::{KeyFolder, PassphraseArgs, public_key};
use super::publisher::{Publisher, now, sign_image};
use super::show;
use crate::failure;

/// The part of `runnel trust` that is about signed names.
#[derive(clap::Subcommand)]
pub enum Action {
    Init(Init),
    Key(Key),
    Delegate(Delegate),
    Rotate(Rotate),
    Sign(Sign),
    Remove(Remove),
    Refresh(Refresh),
    Publish(Publish),
    Show(show::Show),
}

/// Make a publisher's folder: four keys, and the first metadata
///
/// Devices get root.json. Keep keys/root.key and keys/targets.key away from servers: who has them
/// can sign whatever a device runs.
#[derive(clap::Args)]
pub struct Init {
    /// The folder, which must have no keys yet
    folder: PathBuf,
    /// Write the keys without a passphrase, for machines that publish by themselves
    #[arg(long, conflicts_with = "passphrase_file")]
    no_passphrase: bool,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

/// Make a key in a folder of its own or of another one, and print its public half
#[derive(clap::Args)]
pub struct Key {
    /// The folder
    folder: PathBuf,
    /// What the key is for: names the file
    #[arg(long, value_name = "ROLE")]
    role: String,
    /// Write the key without a passphrase
    #[arg(long, conflicts_with = "passphrase_file")]
    no_passphrase: bool,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

/// The server whose names they are, and how its keys and ours are used.
#[derive(clap::Args)]
struct Place {
    /// Read the names from this server first, and publish the change there: runnel://host
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Print JSON: whether the change is in force, and who still has to sign it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    #[command(flatten)]
    tls: TrustArgs,
}

/// Let other keys sign names that match patterns
///
/// The holder of the keys also needs snapshot.key and timestamp.key, and root.json.
#[derive(clap::Args)]
pub struct Delegate {
    /// The publisher's folder
    folder: PathBuf,
    /// The name of the role
    #[arg(long)]
    role: String,
    /// A pattern of NAME:TAG, such as 'media-*:*'; can be given several times
    #[arg(long, value_name = "PATTERN", required = true)]
    names: Vec<String>,
    /// A public key, as `trust key` prints it; can be given several times
    #[arg(long = "public", value_name = "HEX", required = true, value_parser = public_key)]
    keys: Vec<PublicKey>,
    /// How many of the keys must sign a name of this role
    #[arg(long, value_name = "N", default_value_t = 1)]
    threshold: usize,
    #[command(flatten)]
    place: Place,
}

/// Give a top-level role a new key; devices follow by themselves
///
/// The old key stays in the folder: delete it when all is well, or at once if it was stolen.
#[derive(clap::Args)]
pub struct Rotate {
    /// The publisher's folder
    folder: PathBuf,
    /// root, targets, snapshot or timestamp
    #[arg(long, value_parser = TOP_LEVEL)]
    role: String,
    /// The public key of another holder, as `trust key` prints it, for a role that has it beside
    /// the new key; can be given several times
    #[arg(long = "public", value_name = "HEX", value_parser = public_key)]
    others: Vec<PublicKey>,
    /// How many of the keys must sign. If fewer are in the folder, other holders sign after this
    /// one: `trust sign --draft`
    #[arg(long, value_name = "N", default_value_t = 1)]
    threshold: usize,
    /// Write the new key without a passphrase
    #[arg(long)]
    no_passphrase: bool,
    #[command(flatten)]
    place: Place,
}

/// Let a name stand for an image, or sign what another holder of keys has begun
///
/// If a role demands more signatures than there are keys in the folder, a change is kept in
/// drafts/ there. With --draft the next holder is told what it changes, and signs it; with the last
/// signature it comes into force.
#[derive(clap::Args)]
#[command(override_usage = "runnel trust sign [OPTIONS] <FOLDER> <NAME> <IMAGE>\n       \
                            runnel trust sign [OPTIONS] --draft <FILE> <FOLDER>")]
pub struct Sign {
    /// The publisher's folder, or that of another holder
    folder: PathBuf,
    /// NAME:TAG
    #[arg(required_unless_present = "draft", conflicts_with = "draft")]
    name: Option<String>,
    /// The image file
    #[arg(required_unless_present = "draft")]
    image: Option<PathBuf>,
    /// Sign this change of another holder: its file, or a folder of files; can be given several
    /// times
    #[arg(long, value_name = "FILE", conflicts_with = "role")]
    draft: Vec<PathBuf>,
    /// Say what the draft changes, and sign nothing
    #[arg(long, requires = "draft")]
    check: bool,
    /// The role that signs (default: the delegated one that may and whose key is here, else
    /// targets)
    #[arg(long)]
    role: Option<String>,
    #[command(flatten)]
    place: Place,
}

/// Take a name away: devices then refuse it
#[derive(clap::Args)]
pub struct Remove {
    /// The publisher's folder
    folder: PathBuf,
    /// NAME:TAG
    name: String,
    #[command(flatten)]
    place: Place,
}

/// Sign files again before they expire
#[derive(clap::Args)]
pub struct Refresh {
    /// The publisher's folder
    folder: PathBuf,
    /// Which; can be given several times (default: snapshot and timestamp, as far as their keys are
    /// here)
    #[arg(long, value_parser = TOP_LEVEL)]
    role: Vec<String>,
    #[command(flatten)]
    place: Place,
}

/// Send what was signed in a folder to a server
#[derive(clap::Args)]
pub struct Publish {
    /// The publisher's folder
    folder: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// Does what the subcommand says.
pub fn run(action: Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::Init(args) => init(&args)?,
        Action::Key(args) => key(&args)?,
        Action::Delegate(args) => delegate(&args)?,
        Action::Rotate(args) => rotate(&args)?,
        Action::Sign(args) => sign(&args)?,
        Action::Remove(args) => remove(&args)?,
        Action::Refresh(args) => refresh(&args)?,
        Action::Publish(args) => publish(&args)?,
        Action::Show(args) => show::show(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(args: &Init) -> anyhow::Result<()> {
    let folder = KeyFolder::make(&args.folder)?;
    let shown = args.folder.display();
    if args.folder.join("root.json").exists() {
        return Err(failure::usage(format!("{shown} has a root already\nhint: `runnel trust show {shown}`")));
    }
    let passphrase = if args.no_passphrase { None } else { Some(args.passphrase.new_one()?) };
    let mut keys = Vec::with_capacity(TOP_LEVEL.len());
    for role in TOP_LEVEL {
        keys.push(folder.add_key(role, passphrase.as_deref())?);
    }
    let publics = [0, 1, 2, 3].map(|role: usize| keys[role].public());
    let change = Repository::create(publics, Lifetimes::default()).sign(&keys, now())?;
    folder.keep(change.stapled.roots(), &change.stapled)?;
    outln!("{shown}/root.json is what devices trust");
    tell!(
        "next: `runnel push --sign {shown} app.rnl runnel://host/app:1` signs a name; a device takes only signed ones with \
         `--trust root.json`"
    );
    Ok(())
}

fn key(args: &Key) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if args.role.is_empty() || !args.role.chars().all(is_plain) {
        return Err(failure::usage(format!(
            "{:?} cannot be the name of a role: letters, digits, '-' and '_'",
            args.role
        )));
    }
    let folder = KeyFolder::make(&args.folder)?;
    let passphrase = if args.no_passphrase { None } else { Some(args.passphrase.new_one()?) };
    let key = folder.add_key(&folder.free_name(&args.role), passphrase.as_deref())?;
    outln!("{}", key.public().to_hex());
    Ok(())
}

impl Place {
    fn change<T>(
        &self,
        folder: &Path,
        name: &str,
        edit: impl Fn(&mut Repository, &[SigningKey]) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Outcome)> {
        self.with(folder, |publisher| publisher.change(name, edit))
    }

    /// Says what became of a change; `done` is for one that is in force.
    fn told(&self, outcome: &Outcome, done: impl FnOnce()) -> anyhow::Result<()> {
        outcome.print(self.json)?;
        if outcome.change().is_some() {
            done();
        }
        Ok(())
    }

    /// Gives the publisher to `work`.
    fn with<T>(&self, folder: &Path, work: impl FnOnce(&Publisher<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let folder = KeyFolder::open(folder)?;
        let keys = folder.keys(&self.passphrase)?.into_iter().map(|(_, key)| key).collect();
        let server = self.server.as_deref().map(server_of).transpose()?.map(|server| (server, &self.tls));
        work(&Publisher { folder, keys, server, lifetimes: Lifetimes::default(), drafts: None })
    }
}

fn delegate(args: &Delegate) -> anyhow::Result<()> {
    let delegation = Delegation {
        role: args.role.clone(),
        patterns: args.names.clone(),
        keys: args.keys.clone(),
        threshold: args.threshold,
    };
    let ((), outcome) = args.place.change(&args.folder, "", |repository, _| Ok(repository.delegate(&delegation)?))?;
    args.place.told(&outcome, || tell!("role {} may sign {}", args.role, args.names.join(", ")))
}

fn rotate(args: &Rotate) -> anyhow::Result<()> {
    let folder = KeyFolder::open(&args.folder)?;
    let is_open = args.no_passphrase || !folder.is_encrypted()?;
    let passphrase = if is_open { None } else { Some(args.place.passphrase.new_one()?) };
    let name = folder.free_name(&args.role);
    // Before anything is signed with it.
    let public = folder.add_key(&name, passphrase.as_deref())?.public();
    let keys: Vec<PublicKey> = [public].into_iter().chain(args.others.iter().copied()).collect();
    let rotated = args
        .place
        .change(&args.folder, "", |repository, _| Ok(repository.rotate(&args.role, &keys, args.threshold)?));
    let ((), outcome) = rotated.inspect_err(|error| {
        if is_certain(error) {
            folder.remove_key(&name);
        }
    })?;
    let file = args.folder.join("keys").join(format!("{name}.key"));
    args.place.told(&outcome, || tell!("{} has a new key: {}", args.role, file.display()))
}

fn sign(args: &Sign) -> anyhow::Result<()> {
    let (Some(name), Some(image)) = (&args.name, &args.image) else { return sign_draft(args) };
    let name = named(name)?;
    let id = image_id(image)?;
    let (role, outcome) =
        args.place.with(&args.folder, |publisher| sign_image(publisher, &name, (image, id), args.role.as_deref()))?;
    outcome.print(args.place.json)?;
    if outcome.change().is_some() && !args.place.json {
        outln!("{name} is {id}, signed by role {role}");
    }
    Ok(())
}

/// Signs what another holder has begun. It is told before a passphrase is asked for.
fn sign_draft(args: &Sign) -> anyhow::Result<()> {
    let drafts = Drafts::read(&args.draft)?;
    let folder = KeyFolder::open(&args.folder)?;
    let server = args.place.server.as_deref().map(server_of).transpose()?.map(|server| (server, &args.place.tls));
    let lifetimes = Lifetimes::default();
    let mut publisher = Publisher { folder, keys: Vec::new(), server, lifetimes, drafts: Some(drafts) };
    let hinted = |error: anyhow::Error| match error.downcast_ref() {
        Some(SigningError::Ahead { .. }) if args.place.server.is_none() => {
            let text = format!("{error}\nhint: read what is in force now with --server");
            error.context(text)
        }
        _ => error,
    };
    let name = publisher.name_of()?;
    let words = publisher.words(&name).map_err(hinted)?;
    if !args.place.json {
        words.iter().try_for_each(|line| anyhow::Ok(outln!("{line}")))?;
    }
    if args.check {
        if args.place.json {
            outln!("{:#}", json!({"in_force": false, "changes": words}));
        }
        return Ok(());
    }
    publisher.keys = publisher.folder.keys(&args.place.passphrase)?.into_iter().map(|(_, key)| key).collect();
    let drafts = publisher.draft_files();
    let (_, outcome) = publisher.change(&name, |repository, _| Ok(repository.take_drafts(drafts)?))?;
    if args.place.json {
        let mut json = outcome.json();
        json["changes"] = json!(words);
        outln!("{json:#}");
        return Ok(());
    }
    args.place.told(&outcome, || match args.place.server {
        Some(_) => tell!("in force"),
        None => tell!("in force, once `runnel trust publish {} --server …` has sent it", args.folder.display()),
    })
}

fn remove(args: &Remove) -> anyhow::Result<()> {
    let name = named(&args.name)?;
    let removed = args.place.change(&args.folder, &name, |repository, _| match repository.remove_name(&name) {
        Err(SigningError::NotSigned(name)) => Err(failure::not_found(format!(
            "nobody has signed {name}\nhint: `runnel trust show {}` lists what is signed",
            args.folder.display()
        ))),
        removed => Ok(removed?),
    });
    let (role, outcome) = removed?;
    args.place.told(&outcome, || tell!("{name} is signed no more (role {role})"))
}

/// Sends the files as they are: no key is needed for that, and no passphrase.
fn publish(args: &Publish) -> anyhow::Result<()> {
    let Some(server) = &args.place.server else {
        return Err(failure::usage("say where to: --server runnel://host"));
    };
    let server = Some((server_of(server)?, &args.place.tls));
    let folder = KeyFolder::open(&args.folder)?;
    let publisher = Publisher { folder, keys: Vec::new(), server, lifetimes: Lifetimes::default(), drafts: None };
    let ((), outcome) = publisher.change("", |_, _| Ok(()))?;
    args.place.told(&outcome, || tell!("published"))
}

fn refresh(args: &Refresh) -> anyhow::Result<()> {
    let wanted: Vec<&str> = match args.role.is_empty() {
        true => vec!["snapshot", "timestamp"],
        false => args.role.iter().map(String::as_str).collect(),
    };
    let ((), outcome) = args.place.change(&args.folder, "", |repository, _| {
        wanted.iter().try_for_each(|role| repository.refresh(role))?;
        Ok(())
    })?;
    args.place.told(&outcome, || tell!("signed again: {}", wanted.join(", ")))
}

/// Whether an error is sure to say that nothing was published with a new key. If a server was lost
/// before it answered, or the disk failed after it had, the key may be in force.
fn is_certain(error: &anyhow::Error) -> bool {
    use connection::ConnectionError::{Connect, NoGreeting, Refused, Resolve};
    let is_no = |error: &client::ClientError| {
        let client::ClientError::Connection(error) = error else { return false };
        matches!(error, Connect { .. } | NoGreeting { .. } | Refused { .. } | Resolve { .. })
    };
    error.is::<signing::SigningError>() || error.downcast_ref::<client::ClientError>().is_some_and(is_no)
}

/// A name with its tag.
fn named(name: &str) -> anyhow::Result<String> {
    if is_name(name) {
        return Ok(name.into());
    }
    Err(failure::usage(format!("{name:?} is no name: write NAME:TAG, as in app:1 or app:latest")))
}

/// A server by its address.
///
/// # Errors
/// It is none.
pub fn server_of(text: &str) -> anyhow::Result<Server> {
    Ok(Server::parse(text)?)
}

fn image_id(file: &Path) -> anyhow::Result<units::ImageId> {
    Ok(client::open_file(file, &Limits::default())?.1.id())
}
