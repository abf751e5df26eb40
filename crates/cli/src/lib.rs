//! The `runnel` command: one file per subcommand in `command/`, exit codes in `failure`, bars in
//! `progress`.
//!
//! All that needs no data is validated before any work begins. Data goes to standard output,
//! everything else to standard error. Errors are printed once, here.

use std::ffi::OsString;
use std::process::ExitCode;

use ::mount::keeper::Inherited;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// As `println!`, but a full disk or a closed pipe is an error of the command, not a panic.
macro_rules! outln {
    ($($argument:tt)*) => { $crate::progress::line(format_args!($($argument)*))? };
}

/// As `eprintln!`, but what steers a terminal is escaped, since names and messages of others may be
/// among the text. Where standard error is closed or full, what was worked for goes on.
macro_rules! tell {
    ($($argument:tt)*) => { $crate::progress::told(format_args!($($argument)*)) };
}

mod command;
mod config;
mod failure;
mod hot;
mod progress;
mod recording;

use command::{hot as hot_command, *};

/// Run software that your device has no room to install.
#[derive(Parser)]
#[command(name = "runnel", version, propagate_version = true, max_term_width = 100, after_help = failure::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "full")]
    Pack(pack::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    #[cfg(feature = "full")]
    Extract(extract::Args),
    #[cfg(feature = "full")]
    Export(export::Args),
    #[cfg(feature = "full")]
    Convert(convert::Args),
    Check(check::Args),
    Dump(dump::Args),
    #[cfg(feature = "full")]
    Serve(serve::Args),
    #[cfg(feature = "full")]
    Token(token::Args),
    Push(push::Args),
    Images(images::Args),
    #[cfg(feature = "full")]
    #[command(flatten)]
    Manage(manage::Command),
    Mount(mount::Args),
    Umount(umount::Args),
    Upgrade(upgrade::Args),
    Run(run::Args),
    Cache(cache::Args),
    Pin(Box<pin::Args>),
    Rollback(rollback::Args),
    Record(Box<record::Args>),
    Hot(hot_command::Args),
    Launch(launch::Args),
    Launchd(launchd::Args),
    Plans(plans::Args),
    Profile(profile::Args),
    Enter(enter::Args),
    Redirect(redirect::Args),
    Status(status::Args),
    #[cfg(feature = "full")]
    Trust(trust::Args),
    #[cfg(feature = "full")]
    Syscalls(syscalls::Args),
    #[cfg(feature = "full")]
    Specialise(specialise::Args),
    #[cfg(feature = "full")]
    Report(report::Args),
}

/// The command line, with all that its help tells.
pub fn command() -> clap::Command {
    let command = Cli::command();
    #[cfg(feature = "full")]
    let command = command.mut_subcommand("convert", convert::with_help);
    help::with_examples(command)
}

/// The names of the commands by job.
pub fn jobs() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    help::JOBS.iter().map(|(job, commands)| (*job, commands.iter().map(|(name, _)| *name).collect()))
}

/// Commands that were ours once.
const MOVED: [&str; 2] = ["bench", "demo"];

/// The command line; where it asks for help or is wrong, that is said, and this is the exit code.
fn parse(arguments: Vec<OsString>) -> Result<Cli, ExitCode> {
    let asks = arguments.get(1).is_none_or(|word| ["-h", "--help", "help"].iter().any(|help| word == *help));
    let command = if asks { help::by_job(command()) } else { command() };
    command.try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| {
        if let (Err(failed), false) = (error.print(), error.use_stderr()) {
            // What the user asked for is what could not be printed.
            return failure::report(&anyhow::Error::new(failed).context("standard output"));
        }
        if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
            && MOVED.contains(&name.as_str())
        {
            tell!("hint: that is in runnel-bench now; `./x {name}` in the source folder builds and runs it");
        }
        ExitCode::from(error.exit_code() as u8)
    })
}

/// A thread that panics must not leave the others behind, half alive: a mount would hang instead of
/// ending. Only the server knows what a panic may end.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Does what the command line says.
pub fn start() -> ExitCode {
    if let Some(code) = mount::helper::run_if_called() {
        return code;
    }
    let mut arguments = std::env::args_os().collect();
    let inherited = match Inherited::take(&mut arguments) {
        Ok(inherited) => inherited,
        Err(error) => return failure::report(&error.into()),
    };
    let command = match parse(arguments) {
        Ok(parsed) => parsed.command,
        Err(code) => return code,
    };
    #[cfg(all(feature = "full", panic = "unwind"))]
    if !matches!(command, Command::Serve(_)) {
        abort_on_panic();
    }
    #[cfg(all(not(feature = "full"), panic = "unwind"))]
    abort_on_panic();
    let outcome = match command {
        #[cfg(feature = "full")]
        Command::Pack(args) => pack::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        #[cfg(feature = "full")]
        Command::Extract(args) => extract::run(args),
        #[cfg(feature = "full")]
        Command::Export(args) => export::run(args),
        #[cfg(feature = "full")]
        Command::Convert(args) => convert::run(args),
        Command::Check(args) => check::run(args),
        Command::Dump(args) => dump::run(args),
        #[cfg(feature = "full")]
        Command::Serve(args) => serve::run(args),
        #[cfg(feature = "full")]
        Command::Token(args) => token::run(args),
        Command::Push(args) => push::run(args),
        Command::Images(args) => images::run(args),
        #[cfg(feature = "full")]
        Command::Manage(command) => manage::run(&command),
        Command::Mount(args) => mount::run(args, inherited),
        Command::Umount(args) => umount::run(args),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Run(args) => run::run(args, inherited),
        Command::Record(args) => record::run(*args),
        Command::Hot(args) => hot_command::run(args),
        Command::Launch(args) => launch::run(args),
        Command::Launchd(args) => launchd::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Pin(args) => pin::run(*args),
        Command::Rollback(args) => rollback::run(args),
        Command::Plans(args) => plans::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Enter(args) => enter::run(args),
        Command::Redirect(args) => redirect::run(args),
        Command::Status(args) => status::run(args),
        #[cfg(feature = "full")]
        Command::Trust(args) => trust::run(args),
        #[cfg(feature = "full")]
        Command::Syscalls(args) => syscalls::run(args),
        #[cfg(feature = "full")]
        Command::Specialise(args) => specialise::run(args),
        #[cfg(feature = "full")]
        Command::Report(args) => report::run(args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
