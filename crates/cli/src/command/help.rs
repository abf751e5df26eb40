//! The parts of `--help` beside options: the commands by job, and examples of each.

use clap::Command;
use clap::builder::Styles;

/// A job, and its commands with examples.
pub type Job = (&'static str, &'static [(&'static str, &'static [&'static str])]);

/// All jobs.
pub const JOBS: &[Job] = &[
    (
        "Images",
        &[
            #[cfg(feature = "full")]
            (
                "pack",
                &[
                    "runnel pack /opt/app -o app.rnl",
                    "runnel pack --closure /usr/bin/python3 --include /usr/lib/python3.11 -o python.rnl",
                    "runnel pack app.tar -o app.rnl --small --trace start.trace",
                    "runnel pack /opt/app -o app-2.rnl --small --base app-1.rnl",
                ],
            ),
            ("ls", &["runnel ls -l app.rnl /usr/bin", "runnel ls -R runnel://server/app"]),
            ("cat", &["runnel cat runnel://server/app /etc/os-release"]),
            #[cfg(feature = "full")]
            ("extract", &["runnel extract app.rnl -C /opt/app"]),
            ("check", &["runnel check app.rnl"]),
            #[cfg(feature = "full")]
            ("export", &["runnel export app.rnl --tar app.tar", "runnel export app.rnl --squashfs app.squashfs"]),
            #[cfg(feature = "full")]
            ("convert", &["runnel convert app.squashfs -o app.rnl --small"]),
        ],
    ),
    (
        "Streaming",
        &[
            #[cfg(feature = "full")]
            (
                "serve",
                &[
                    "runnel serve /srv/runnel --read-only --listen 0.0.0.0:7327",
                    "runnel serve /srv/runnel --tls-cert server.pem --tls-key server.key --push-ca ca.pem",
                    "runnel serve /srv/runnel --volume data=/srv/data:rw",
                    "runnel serve /srv/runnel --access access.toml",
                ],
            ),
            #[cfg(feature = "full")]
            (
                "token",
                &[
                    "runnel token create --access access.toml --principal ci --expires 30d",
                    "runnel token list --access access.toml --json",
                    "runnel token revoke --access access.toml 0f5b3c1d2e4a",
                ],
            ),
            (
                "push",
                &[
                    "runnel push app.rnl runnel://server/app:2.1",
                    "runnel push --sign keys app.rnl runnel://server/app:2.1",
                ],
            ),
            (
                "images",
                &[
                    "runnel images runnel://server",
                    #[cfg(feature = "full")]
                    "runnel images rm runnel://server/app:1",
                ],
            ),
            #[cfg(feature = "full")]
            ("tag", &["runnel tag runnel://server/app:2.1 app:stable"]),
            #[cfg(feature = "full")]
            (
                "retain",
                &["runnel retain runnel://server 'app-*:stable' --keep 3 --for 30d", "runnel retain runnel://server"],
            ),
            #[cfg(feature = "full")]
            ("gc", &["runnel gc runnel://server --dry-run", "runnel gc runnel://server --grace 12h"]),
            (
                "mount",
                &[
                    "runnel mount runnel://server/app /opt/app",
                    "runnel mount --kernel app.rnl /opt/app",
                    "runnel mount runnels://server/volume/data /mnt --unsent /var/lib/unsent",
                ],
            ),
            ("umount", &["runnel umount /opt/app"]),
            ("upgrade", &["runnel upgrade", "runnel upgrade /opt/app"]),
            (
                "run",
                &[
                    "runnel run runnel://server/python -- python3 app.py",
                    "runnel run --cache /srv/cache --cache-size 1g runnel://server/app -- app",
                    "runnel run app.rnl --data runnel://server/volume/data=/srv/data -- app",
                ],
            ),
            (
                "pin",
                &[
                    "runnel pin runnel://server/python",
                    "runnel pin --rate 64k --budget 500m runnel://server/app:2.1",
                    "runnel pin --health '/usr/local/bin/app-works' runnel://server/app",
                ],
            ),
            ("rollback", &["runnel rollback runnel://server/app"]),
            (
                "cache",
                &["runnel cache", "runnel cache prune --cache /srv/cache", "runnel cache unpin runnel://server/python"],
            ),
            ("enter", &["runnel enter /opt/app -- /bin/sh"]),
            ("redirect", &["runnel redirect -c redirect.toml", "runnel redirect -c redirect.toml --stop"]),
            ("status", &["runnel status /opt/app", "runnel status --json runnel://server"]),
            #[cfg(feature = "full")]
            (
                "trust",
                &[
                    "runnel trust init /etc/runnel/publisher",
                    "runnel trust refresh /etc/runnel/publisher --server runnel://server",
                    "runnel trust show runnel://server/app:1",
                    "runnel trust tls /etc/runnel/tls --server server,192.0.2.7 --device camera-7",
                    "runnel trust tls /etc/runnel/tls --revoke camera-7",
                ],
            ),
        ],
    ),
    (
        "Data",
        &[(
            "profile",
            &["runnel profile learn app.trace --file /srv/data/table.db", "runnel profile show table.db.flow"],
        )],
    ),
    (
        "Launch",
        &[
            ("launch", &["runnel launch --learn -- gimp", "runnel launch -- gimp", "runnel launch --install -- gimp"]),
            ("launchd", &["runnel launchd --verbose", "runnel launchd --install"]),
            (
                "plans",
                &["runnel plans", "runnel plans learn first.trace second.trace -- gimp", "runnel plans off gimp"],
            ),
            (
                "record",
                &[
                    "runnel record -o start.trace app.rnl -- app --version",
                    "runnel record -- gimp",
                    #[cfg(feature = "full")]
                    "runnel record --kernel bzImage --vmlinux vmlinux -o web.coverage",
                ],
            ),
            #[cfg(feature = "full")]
            ("report", &["runnel report gimp.trace -o report.html"]),
        ],
    ),
    #[cfg(feature = "full")]
    (
        "Kernel",
        &[
            (
                "specialise",
                &["runnel specialise --kernel-source linux-6.12 --config web.config --image app.rnl -o web"],
            ),
            ("syscalls", &["runnel syscalls --table /usr/bin/curl", "runnel syscalls --seccomp app.rnl"]),
        ],
    ),
    ("Inspect", &[("dump", &["runnel dump app.rnl"]), ("hot", &["runnel hot start.trace"])]),
];

/// Adds the examples to the help of each command.
pub fn with_examples(command: Command) -> Command {
    JOBS.iter().flat_map(|(_, commands)| *commands).fold(command, |command, (name, examples)| {
        command.mut_subcommand(name, |command| {
            let more = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
            command.after_long_help(format!("{more}{}\n  {}", heading("Examples"), examples.join("\n  ")))
        })
    })
}

/// Lists the commands by job in the help of all. Takes as long as help takes to be written: only
/// for whoever reads it.
pub fn by_job(command: Command) -> Command {
    let listed = command.clone().help_template("{subcommands}").render_help().to_string();
    let mut entries: Vec<(&str, String)> = Vec::new();
    for line in listed.lines().filter(|line| !line.trim().is_empty()) {
        // The text of a command is further to the right.
        match (line.strip_prefix("  ").filter(|text| !text.starts_with(' ')), entries.last_mut()) {
            (None, Some((_, text))) => *text += &format!("{line}\n"),
            _ => entries.push((line.split_whitespace().next().unwrap_or_default(), format!("{line}\n"))),
        }
    }
    let mut text = String::new();
    for (job, commands) in JOBS {
        text += &format!("{}\n", heading(job));
        for (name, _) in *commands {
            text.extend(entries.extract_if(.., |(entry, _)| *entry == *name).map(|(_, entry)| entry));
        }
        text.push('\n');
    }
    text.extend(entries.into_iter().map(|(_, entry)| entry));
    let options = heading("Options");
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}\n{options}\n{{options}}{{after-help}}"
    ))
}

fn heading(text: &str) -> String {
    let style = *Styles::styled().get_header();
    format!("{style}{text}:{style:#}")
}

#[cfg(test)]
mod tests;
