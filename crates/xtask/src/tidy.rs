//! The structural rules, as checks. Each prints every place that breaks it, so that one run shows
//! all the work.

mod comments;
mod documents;
mod sizes;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use self::sizes::Impls;
use crate::spec;

/// Crates that open no file, socket or clock: time and bytes are parameters.
const PURE: &[&str] = &[
    "units",
    "codec",
    "elf",
    "trace",
    "profile",
    "predict",
    "image",
    "erofs",
    "wire",
    "syscalls",
    "coverage",
    "specialise",
    "report",
    "trust",
];

/// What the library of a pure crate begins with: lints refuse what clippy.toml names.
const PURITY: &str = "#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]";

/// Files that may hold `unsafe`, each block with its SAFETY note.
const UNSAFE_FILES: &[&str] = &[
    "crates/bench/src/lab/guest/pages.rs",
    "crates/capi/src/error.rs",
    "crates/capi/src/error/tests.rs",
    "crates/capi/src/quiet.rs",
    "crates/capi/src/raw.rs",
    "crates/capi/src/sync.rs",
    "crates/capi/tests/programs/away.rs",
    "crates/capi/tests/programs/support.rs",
    "crates/fuse/src/device.rs",
    "crates/fuse/src/handover.rs",
    "crates/fuse/tests/signals.rs",
    "crates/host/src/exit.rs",
    "crates/host/src/fork.rs",
    "crates/host/src/memory.rs",
    "crates/host/src/signals.rs",
    "crates/host/src/signals/pass_on.rs",
    "crates/host/src/signals/witness.rs",
    "crates/host/src/verity.rs",
    "crates/host/tests/signals.rs",
    "crates/launch/src/fiemap.rs",
    "crates/host/src/priority.rs",
    "crates/launch/src/priority.rs",
    "crates/preload/src/reads/calls.rs",
    "crates/preload/src/reads/exports.rs",
    "crates/preload/src/reads/notes.rs",
    "crates/preload/src/reads/writer.rs",
    "crates/preload/src/trap.rs",
    "crates/probe/src/exact.rs",
    "crates/probe/src/helper.rs",
    "crates/probe/src/perf/event.rs",
    "crates/probe/src/perf/ring.rs",
    "crates/probe/src/ptrace.rs",
    "crates/probe/src/residency.rs",
    "crates/probe/src/seccomp.rs",
    "crates/probe/src/spawn.rs",
    "crates/probe/src/wake.rs",
    "crates/rtld-audit/src/linker.rs",
    "crates/rtld-audit/src/report.rs",
    "crates/sandbox/tests/attacks.rs",
    "crates/xtask/src/runnelfs/meter.rs",
];

/// Which of our crates each crate may use; `units` is open to all. ARCHITECTURE.md draws the same
/// table.
const EDGES: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("codec", &[]),
    ("elf", &[]),
    ("syscalls", &["elf"]),
    ("host", &[]),
    ("fuse", &[]),
    ("sandbox", &["syscalls"]),
    ("trace", &[]),
    ("trust", &[]),
    ("signing", &["trust"]),
    ("wire", &[]),
    ("store", &[]),
    ("objects", &["store"]),
    ("encryption", &[]),
    ("cache", &["encryption"]),
    ("volume", &[]),
    ("disk", &["fuse", "host"]),
    ("profile", &["trace"]),
    ("predict", &["profile"]),
    ("image", &["codec"]),
    ("erofs", &["image"]),
    ("pack", &["image", "codec", "elf", "host", "profile"]),
    ("server", &["store", "volume", "image", "wire", "predict", "profile", "codec", "host", "trust", "signing"]),
    ("connection", &["wire", "host"]),
    ("client", &["cache", "wire", "connection", "image", "codec", "host", "predict", "profile", "trust"]),
    ("stream", &["wire", "connection", "codec", "encryption"]),
    ("mount", &["client", "connection", "elf", "erofs", "fuse", "host", "image", "stream"]),
    ("report", &[]),
    (
        "bench",
        &[
            "client",
            "connection",
            "coverage",
            "disk",
            "host",
            "image",
            "kernel",
            "pack",
            "predict",
            "profile",
            "report",
            "specialise",
            "stream",
            "syscalls",
            "trace",
            "wire",
        ],
    ),
    ("record", &["host", "probe", "trace"]),
    (
        "cli",
        &[
            "cache",
            "client",
            "connection",
            "coverage",
            "elf",
            "encryption",
            "host",
            "image",
            "kernel",
            "launch",
            "mount",
            "objects",
            "pack",
            "predict",
            "probe",
            "profile",
            "record",
            "report",
            "sandbox",
            "server",
            "signing",
            "specialise",
            "stream",
            "syscalls",
            "trace",
            "trust",
            "wire",
        ],
    ),
    ("capi", &["connection", "stream"]),
    ("preload", &[]),
    ("rtld-audit", &[]),
    ("probe", &["host"]),
    ("launch", &["probe", "trace", "profile", "elf", "host"]),
    ("coverage", &[]),
    ("specialise", &[]),
    ("kernel", &["coverage", "host", "specialise", "syscalls"]),
    ("xtask", &["kernel", "report", "trace"]),
];

/// Which more of our crates the tests of each crate may use.
const TEST_EDGES: &[(&str, &[&str])] = &[
    ("client", &["server", "signing", "store"]),
    ("kernel", &["elf", "pack"]),
    ("mount", &["pack", "server", "store"]),
    ("preload", &["probe"]),
    ("rtld-audit", &["launch", "profile"]),
    ("stream", &["server", "store", "volume"]),
    ("xtask", &["codec"]),
];

/// Runs every rule; fails with the list of what they found.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let mut impls = Impls::default();
    let files = sources(&root.join("crates"))?;
    for path in &files {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        file_rules(&name, &text, &mut impls, &mut found);
    }
    impls.check(&mut found);
    edges(root, &mut found)?;
    formats(root, &mut found)?;
    documents::check(root, &mut found)?;
    spec::check(root, &mut found);
    for line in &found {
        eprintln!("tidy: {line}");
    }
    ensure!(found.is_empty(), "{} rule(s) broken", found.len());
    Ok(())
}

fn file_rules(name: &str, text: &str, impls: &mut Impls, found: &mut Vec<String>) {
    let crate_name = name.split('/').nth(1).unwrap_or_default();
    comments::check(name, text, found);
    sizes::check(crate_name, name, text, impls, found);
    let is_test = name.contains("/tests") || name.ends_with("tests.rs");
    if !is_test && !text.trim_start().starts_with("//!") {
        found.push(format!("{name}: has no module documentation at its top"));
    }
    if PURE.contains(&crate_name) && name.ends_with("src/lib.rs") && !text.contains(PURITY) {
        found.push(format!("{name}: a pure crate has {PURITY}"));
    }
    let unsafe_blocks = text.lines().filter(|line| line.contains("unsafe {") || line.contains("unsafe fn")).count();
    if unsafe_blocks > 0 && crate_name != "xtask" {
        if !UNSAFE_FILES.contains(&name) {
            found.push(format!("{name}: holds unsafe code and is not on the list"));
        }
        if text.matches("// SAFETY:").count() < unsafe_blocks {
            found.push(format!("{name}: {unsafe_blocks} unsafe blocks, fewer SAFETY notes"));
        }
    }
}

/// Holds [`EDGES`] against what cargo says.
fn edges(root: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        manifest_path: PathBuf,
        dependencies: Vec<Dependency>,
    }
    #[derive(Deserialize)]
    struct Dependency {
        path: Option<PathBuf>,
        kind: Option<String>,
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let table: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    for package in &metadata.packages {
        let name = folder(package.manifest_path.parent().unwrap_or(root));
        let Some(allowed) = table.get(name.as_str()) else {
            found.push(format!("crates/{name}: not in the table of allowed edges"));
            continue;
        };
        let in_tests = TEST_EDGES.iter().find(|(tested, _)| *tested == name).map_or(&[][..], |(_, used)| used);
        for dependency in &package.dependencies {
            let Some(used) = dependency.path.as_deref().map(folder) else { continue };
            let is_for_tests = dependency.kind.as_deref() == Some("dev");
            let listed = allowed.contains(&used.as_str()) || is_for_tests && in_tests.contains(&used.as_str());
            if used != "units" && used != name && !listed {
                found.push(format!("crates/{name}: uses {used}, which the tables of allowed edges do not list"));
            }
        }
    }
    Ok(())
}

fn folder(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Each document in docs/formats says which `format.rs` it describes and carries the start of its
/// hash: `format.rs: HASH` for crates/STEM/src/format.rs, or `format.rs: HASH
/// (crates/NAME/src/format.rs)`.
fn formats(root: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join("docs/formats"))? {
        let path = entry?.path();
        let name = folder(&path);
        let text = fs::read_to_string(&path)?;
        let Some(line) = text.lines().find_map(|line| line.trim_matches(['`', '*', ' ']).strip_prefix("format.rs: "))
        else {
            found.push(format!("docs/formats/{name}: has no 'format.rs: HASH' line"));
            continue;
        };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (hash, source) = match line.split_once(" (") {
            Some((hash, source)) => (hash, source.trim_end_matches(')').to_string()),
            None => (line, format!("crates/{stem}/src/format.rs")),
        };
        let code = fs::read(root.join(&source)).with_context(|| format!("docs/formats/{name} speaks of {source}"))?;
        let actual = blake3::hash(&code).to_hex();
        if hash.trim() != &actual[..16] {
            found.push(format!(
                "docs/formats/{name}: describes {source} {hash}, the source is {}: bring the page up to date",
                &actual[..16]
            ));
        }
    }
    Ok(())
}

/// All Rust sources under `folder`, sorted.
fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
