//! Debian's programs: a tree of their packages, and how many places that enter the kernel are
//! resolved in each.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use pack::LocalRoot;
use syscalls::analysis::{Options, Subject, analyse};

use super::results::Results;
use crate::lab::world::debian::unpack;
use crate::stage::{Stages, remove};

/// The programs.
pub const PROGRAMS: [&str; 8] = [
    "/bin/busybox",
    "/bin/ls",
    "/bin/cp",
    "/usr/bin/sort",
    "/usr/bin/python3.11",
    "/usr/sbin/dropbear",
    "/usr/sbin/sshd",
    "/usr/sbin/nginx",
];

/// Their packages, with all libraries that they load.
const PACKAGES: [&str; 39] = [
    "busybox-static",
    "coreutils",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "dropbear-bin",
    "openssh-server",
    "nginx",
    "libc6",
    "libgcc-s1",
    "libacl1",
    "libattr1",
    "libaudit1",
    "libcap-ng0",
    "libcap2",
    "libcom-err2",
    "libcrypt1",
    "libexpat1",
    "libgcrypt20",
    "libgmp10",
    "libgpg-error0",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "liblz4-1",
    "liblzma5",
    "libnsl2",
    "libpam0g",
    "libpcre2-8-0",
    "libselinux1",
    "libssl3",
    "libsystemd0",
    "libtirpc3",
    "libtomcrypt1",
    "libtommath1",
    "libwrap0",
    "libzstd1",
    "zlib1g",
];

/// The tree, fetched by apt unless it is in the cache.
pub fn programs(work: &Path, stages: &Stages) -> anyhow::Result<PathBuf> {
    let tree = work.join("programs/tree");
    stages.run("programs", &PACKAGES.join(" "), &tree, || {
        remove(&tree)?;
        unpack(&PACKAGES, &tree)?;
        // Packages of this release still name these folders both ways.
        for name in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(tree.join(name)).with_context(|| tree.display().to_string())?;
        }
        Ok(())
    })?;
    Ok(tree)
}

/// Analyses each program by itself.
pub fn measure(tree: &Path, results: &mut Results) -> anyhow::Result<()> {
    let root = LocalRoot::new(tree);
    for program in PROGRAMS {
        let start = Instant::now();
        let subject = Subject::Programs(vec![program.as_bytes().to_vec()]);
        let report = match analyse(&root, &subject, &Options::default()) {
            Ok(report) => report,
            Err(error) => {
                results.notes.push(format!("{program}: {error}"));
                continue;
            }
        };
        let share = report.resolved as f64 / report.sites.max(1) as f64;
        let mut add = |metric, unit, value| results.add(program, "runnel", "syscalls", metric, unit, value);
        add("sites", "count", report.sites as f64);
        add("resolved", "share", share);
        add("calls", "count", report.calls.len() as f64);
        add("analysis_seconds", "s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
