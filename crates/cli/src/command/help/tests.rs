//! Help is complete, and its examples are commands.

use clap::error::ErrorKind;

use super::*;

fn names(command: &Command) -> Vec<String> {
    command.get_subcommands().map(|command| command.get_name().to_string()).collect()
}

fn long_help(command: &Command, name: &str) -> String {
    let mut command = command.clone();
    command.find_subcommand_mut(name).expect("it is there").render_long_help().to_string()
}

#[test]
fn every_command_has_one_job() {
    let mut found = names(&crate::command());
    let mut listed: Vec<&str> = JOBS.iter().flat_map(|(_, commands)| *commands).map(|(name, _)| *name).collect();
    found.sort();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn help_lists_all_commands_by_job() {
    let help = by_job(crate::command().term_width(100)).render_help().to_string();
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    let mut rest = help.as_str();
    for (job, commands) in JOBS {
        for line in
            std::iter::once(format!("\n{job}:\n")).chain(commands.iter().map(|(name, _)| format!("\n  {name} ")))
        {
            let at = rest.find(&line).unwrap_or_else(|| panic!("no {line:?} in what follows of\n{help}"));
            rest = &rest[at + line.len() - 1..];
        }
    }
    assert!(rest.contains("\n  help ") && rest.contains("--version") && rest.contains("Exit codes:"), "{help}");
}

#[test]
fn every_command_has_examples_that_it_takes_and_a_version() {
    let command = crate::command();
    for (name, examples) in JOBS.iter().flat_map(|(_, commands)| *commands) {
        assert!(long_help(&command, name).contains("Examples:\n  runnel "), "{name}");
        assert!(!examples.is_empty(), "{name}");
        for example in *examples {
            assert!(example.starts_with(&format!("runnel {name}")) && example.len() < 98, "{example}");
            let parsed = command.clone().try_get_matches_from(example.split(' '));
            assert!(parsed.is_ok(), "{example}: {parsed:?}");
        }
        let asked = command.clone().try_get_matches_from(["runnel", name, "--version"]);
        assert_eq!(asked.expect_err("a version").kind(), ErrorKind::DisplayVersion, "{name}");
    }
}

#[test]
fn arguments_stand_under_no_heading_of_options() {
    fn look(command: &Command) {
        for argument in command.get_positionals() {
            assert_eq!(argument.get_help_heading(), None, "{} {argument}", command.get_name());
        }
        command.get_subcommands().for_each(look);
    }
    look(&crate::command());
}

#[test]
fn what_was_said_after_options_is_still_said() {
    let help = long_help(&crate::command(), "launchd");
    assert!(help.contains("Watches the programs"), "{help}");
}

#[cfg(feature = "full")]
#[test]
fn switches_of_research_are_taken_and_not_shown() {
    let command = crate::command();
    for (name, words, options) in [
        (
            "serve",
            "store",
            "--push-window=0 --segment-pages=8 --construction-timer=1 --audit-every=0 --provider-threshold=0.1 \
             --provider-ahead=1 --provider=none",
        ),
        ("serve", "store", "--no-bundles"),
        ("mount", "app.rnl /mnt", "--granularity=page --ablation=short --ablation=alloc"),
    ] {
        let help = long_help(&command, name);
        for option in options.split_whitespace() {
            let option = option.split('=').next().unwrap_or_default();
            assert!(!help.contains(option), "{name} {option}");
        }
        let words = ["runnel", name].into_iter().chain(words.split(' ')).chain(options.split_whitespace());
        assert!(command.clone().try_get_matches_from(words).is_ok(), "{name} {options}");
    }
}
