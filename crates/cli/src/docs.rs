//! Documents from the help of the command line: the reference as Markdown, man pages, completions.
//! For `./x docs`; users install the result.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, Command};
use clap_complete::Shell;

fn main() -> anyhow::Result<()> {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [reference, made] = &folders[..] else { anyhow::bail!("usage: runnel-docs REFERENCE OTHERS") };
    let (man, completions) = (made.join("man"), made.join("completions"));
    for folder in [reference, &man, &completions] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut command = runnel::command();
    clap_mangen::generate_to(command.clone(), &man)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "runnel", &completions)?;
    }
    command.build();
    let mut index = String::from("# Commands\n\n");
    let mut summary = String::from("\n- [Commands](reference/index.md)\n");
    for (job, names) in runnel::jobs() {
        let _ = writeln!(index, "## {job}\n");
        for name in names {
            let found = command.find_subcommand(name).with_context(|| format!("no command {name}"))?;
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(index, "- [runnel {name}]({name}.md): {}", escaped(&about));
            let _ = writeln!(summary, "  - [runnel {name}](reference/{name}.md)");
            let mut page = String::new();
            describe(found, 1, &mut page);
            fs::write(reference.join(format!("{name}.md")), page)?;
        }
        index.push('\n');
    }
    fs::write(reference.join("index.md"), index)?;
    Ok(fs::write(reference.join("SUMMARY.md"), summary)?)
}

/// A command and those below it, as sections of a page.
fn describe(command: &Command, depth: usize, page: &mut String) {
    let heading = "#".repeat(depth);
    let title = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(|line| format!("    {}\n", line.trim()));
    let _ = writeln!(page, "{heading} {title}\n\n{}\n\n{}", escaped(&about), usage.collect::<String>());
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
        .collect();
    let mut headings: Vec<&str> = Vec::new();
    for name in shown.iter().map(|argument| under(argument)) {
        if !headings.contains(&name) {
            headings.push(name);
        }
    }
    for name in headings {
        let _ = writeln!(page, "{heading}# {name}\n");
        shown.iter().filter(|argument| under(argument) == name).for_each(|argument| item(argument, page));
        page.push('\n');
    }
    let more = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let (more, examples) = more.split_once("Examples:").unwrap_or((&more, ""));
    if !more.trim().is_empty() {
        let _ = writeln!(page, "{}\n", escaped(more.trim()));
    }
    if !examples.is_empty() {
        let lines: String = examples.lines().skip(1).map(|line| format!("    {}\n", line.trim())).collect();
        let _ = writeln!(page, "{heading}# Examples\n\n{lines}");
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        describe(below, depth + 1, page);
    }
}

/// The heading that an argument stands under.
fn under(argument: &Arg) -> &str {
    argument.get_help_heading().unwrap_or(if argument.is_positional() { "Arguments" } else { "Options" })
}

/// An argument as an item of a list.
fn item(argument: &Arg, page: &mut String) {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let short = argument.get_short().filter(|_| !argument.is_positional()).map(|short| format!("-{short}, "));
    let _ = write!(page, "- `{}{argument}`: {}", short.unwrap_or_default(), escaped(&help).replace('\n', "\n  "));
    let listed = |values: Vec<String>| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    let takes = argument.get_action().takes_values();
    let known: Vec<_> =
        argument.get_possible_values().into_iter().filter(|value| takes && !value.is_hide_set()).collect();
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if takes && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let _ = write!(page, " [default: {}]", listed(defaults));
    }
    page.push('\n');
    for value in known {
        let help = value.get_help().map(|help| format!(": {}", escaped(&help.to_string()))).unwrap_or_default();
        let _ = writeln!(page, "  - `{}`{help}", value.get_name());
    }
}

/// Text that Markdown takes as it is.
fn escaped(text: &str) -> String {
    text.replace('<', "\\<").replace('*', "\\*")
}
