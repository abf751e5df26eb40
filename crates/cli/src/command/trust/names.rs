//! `runnel trust init|key|delegate|rotate|sign|remove|refresh|publish|show`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use client::admin::read_signed;
use connection::{Server, Target};
use image::Limits;
use serde_json::{Value, json};
use signing::{Delegation, Lifetimes, PublicKey, Repository, SigningError, SigningKey, TOP_LEVEL};
use trust::repository::is_name;
use trust::{Known, Stapled};

use super::TrustArgs;
use super::key_folder::{KeyFolder, PassphraseArgs, public_key};
use super::publisher::{PATIENCE, Publisher, now, sign_image};
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
    Show(Show),
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
    /// How many of the keys must sign
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
    /// How many of the keys must sign; as many must be in the folder
    #[arg(long, value_name = "N", default_value_t = 1)]
    threshold: usize,
    /// Write the new key without a passphrase
    #[arg(long)]
    no_passphrase: bool,
    #[command(flatten)]
    place: Place,
}

/// Let a name stand for an image
#[derive(clap::Args)]
pub struct Sign {
    /// The publisher's folder
    folder: PathBuf,
    /// NAME:TAG
    name: String,
    /// The image file
    image: PathBuf,
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

/// Show roles, keys, versions, expiry and names
#[derive(clap::Args)]
pub struct Show {
    /// A publisher's folder, a server (runnel://host), or one of its names (runnel://host/app:1)
    place: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TrustArgs,
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
        Action::Show(args) => show(&args)?,
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
    ) -> anyhow::Result<T> {
        self.with(folder, |publisher| Ok(publisher.change(name, edit)?.0))
    }

    /// Gives the publisher to `work`.
    fn with<T>(&self, folder: &Path, work: impl FnOnce(&Publisher<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let folder = KeyFolder::open(folder)?;
        let keys = folder.keys(&self.passphrase)?.into_iter().map(|(_, key)| key).collect();
        let server = self.server.as_deref().map(server_of).transpose()?.map(|server| (server, &self.tls));
        work(&Publisher { folder, keys, server, lifetimes: Lifetimes::default() })
    }
}

fn delegate(args: &Delegate) -> anyhow::Result<()> {
    let delegation = Delegation {
        role: args.role.clone(),
        patterns: args.names.clone(),
        keys: args.keys.clone(),
        threshold: args.threshold,
    };
    args.place.change(&args.folder, "", |repository, _| Ok(repository.delegate(&delegation)?))?;
    tell!("role {} may sign {}", args.role, args.names.join(", "));
    Ok(())
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
    if let Err(error) = rotated {
        if is_certain(&error) {
            folder.remove_key(&name);
        }
        return Err(error);
    }
    tell!("{} has a new key: {}", args.role, args.folder.join("keys").join(format!("{name}.key")).display());
    Ok(())
}

fn sign(args: &Sign) -> anyhow::Result<()> {
    let name = named(&args.name)?;
    let id = image_id(&args.image)?;
    let role = args
        .place
        .with(&args.folder, |publisher| sign_image(publisher, &name, (&args.image, id), args.role.as_deref()))?;
    outln!("{name} is {id}, signed by role {role}");
    Ok(())
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
    tell!("{name} is signed no more (role {})", removed?);
    Ok(())
}

/// Sends the files as they are: no key is needed for that, and no passphrase.
fn publish(args: &Publish) -> anyhow::Result<()> {
    let Some(server) = &args.place.server else {
        return Err(failure::usage("say where to: --server runnel://host"));
    };
    let server = Some((server_of(server)?, &args.place.tls));
    let folder = KeyFolder::open(&args.folder)?;
    let publisher = Publisher { folder, keys: Vec::new(), server, lifetimes: Lifetimes::default() };
    publisher.change("", |_, _| Ok(()))?;
    tell!("published");
    Ok(())
}

fn refresh(args: &Refresh) -> anyhow::Result<()> {
    let wanted: Vec<&str> = match args.role.is_empty() {
        true => vec!["snapshot", "timestamp"],
        false => args.role.iter().map(String::as_str).collect(),
    };
    args.place.change(&args.folder, "", |repository, _| {
        wanted.iter().try_for_each(|role| repository.refresh(role))?;
        Ok(())
    })?;
    tell!("signed again: {}", wanted.join(", "));
    Ok(())
}

fn show(args: &Show) -> anyhow::Result<()> {
    let (title, files) = match args.place.contains("://") {
        false => {
            let folder = KeyFolder::open(Path::new(&args.place))?;
            let root = folder.root()?;
            let version = trust::repository::version_of("root", &root).unwrap_or(1);
            let mut files = folder.files("", version)?;
            let roots = root_chain(&folder, version)?;
            roots.into_iter().for_each(|root| files.push_root(root));
            for role in delegated(&files) {
                if let Some(file) = newest(&folder, &files, &role)? {
                    files.push(&role, file);
                }
            }
            (args.place.clone(), files)
        }
        true => {
            let (server, name) = match Target::parse(&args.place) {
                Ok(Target::Remote(remote)) => (remote.server.clone(), remote.image.to_string()),
                _ => (server_of(&args.place)?, String::new()),
            };
            let files = read_signed(&server, &args.tls.trust()?, &name, &Known::of_root(0), PATIENCE)?;
            (args.place.clone(), files)
        }
    };
    let json = describe(&files)?;
    if args.json {
        outln!("{json:#}");
        return Ok(());
    }
    if files.file("timestamp").is_none() {
        outln!("{title} has no signed names");
        return Ok(());
    }
    for role in json["roles"].as_array().into_iter().flatten() {
        let text = |field: &str| role[field].as_str().unwrap_or_default().to_owned();
        // Whoever has the server may have written anything.
        let shown = |text: &str| units::printable_line(text.as_bytes()).into_owned();
        let text = |field: &str| shown(&text(field));
        outln!("{:<12} version {:<5} expires {}", text("role"), role["version"], text("expires"));
        for (name, target) in role["names"].as_object().into_iter().flatten() {
            outln!("    {} is {}", shown(name), shown(target["id"].as_str().unwrap_or("?")));
        }
        for delegation in role["delegates"].as_array().into_iter().flatten() {
            let patterns: Vec<_> =
                delegation["names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let role = delegation["role"].as_str().unwrap_or("?");
            outln!("    role {} may sign {}", shown(role), shown(&patterns.join(", ")));
        }
    }
    if !args.place.contains("://") {
        return Ok(());
    }
    tell!("note: these files were read, and their signatures not checked: a device with `--trust` does that");
    Ok(())
}

/// The newest root of a folder.
fn root_chain(folder: &KeyFolder, version: u64) -> anyhow::Result<Vec<Vec<u8>>> {
    Ok(folder.read(&trust::repository::file_name("root", version))?.into_iter().collect())
}

fn delegated(files: &Stapled) -> Vec<String> {
    let Some(Ok(file)) = files.file("targets").map(serde_json::from_slice::<Value>) else { return Vec::new() };
    let roles = file["signed"]["delegations"]["roles"].as_array().into_iter().flatten();
    roles.filter_map(|role| role["name"].as_str().map(str::to_owned)).collect()
}

fn newest(folder: &KeyFolder, files: &Stapled, role: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let listed = files.file("snapshot").and_then(|snapshot| trust::repository::listed_version(snapshot, role));
    let Some(version) = listed else { return Ok(None) };
    folder.read(&trust::repository::file_name(role, version))
}

/// What the files say, for people and programs.
fn describe(files: &Stapled) -> anyhow::Result<Value> {
    let mut roles = Vec::new();
    let root = files.roots().last().map(|root| ("root", root.as_slice()));
    for (role, bytes) in root.into_iter().chain(files.files()) {
        let file: Value = serde_json::from_slice(bytes).with_context(|| format!("file of {role}"))?;
        let body = &file["signed"];
        let mut entry =
            json!({"role": role, "version": body["version"], "expires": body["expires"], "bytes": bytes.len()});
        if let Some(targets) = body["targets"].as_object() {
            let name = |(name, target): (&String, &Value)| {
                let ours = &target["custom"]["runnel"];
                let about = json!({"id": ours["id"], "bytes": target["length"], "fs_verity": ours["fs_verity"]});
                (name.clone(), about)
            };
            entry["names"] = Value::Object(targets.iter().map(name).collect());
        }
        if let Some(delegations) = body["delegations"]["roles"].as_array() {
            let one = |role: &Value| json!({"role": role["name"], "names": role["paths"], "keys": role["keyids"], "threshold": role["threshold"]});
            entry["delegates"] = delegations.iter().map(one).collect();
        }
        if let Some(keys) = body["roles"].as_object() {
            entry["keys"] = Value::Object(keys.clone());
        }
        roles.push(entry);
    }
    Ok(json!({"roles": roles}))
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

fn server_of(text: &str) -> anyhow::Result<Server> {
    Ok(Server::parse(text)?)
}

fn image_id(file: &Path) -> anyhow::Result<units::ImageId> {
    Ok(client::open_file(file, &Limits::default())?.1.id())
}
