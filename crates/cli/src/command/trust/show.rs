//! `runnel trust show`.

use std::path::Path;

use anyhow::Context;
use client::admin::read_signed;
use connection::Target;
use serde_json::{Value, json};
use trust::{Known, Stapled};

use super::TrustArgs;
use super::key_folder::KeyFolder;
use super::names::server_of;
use super::publisher::PATIENCE;

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

/// Shows what a folder or a server has.
///
/// # Errors
/// It cannot be read.
pub fn show(args: &Show) -> anyhow::Result<()> {
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
