//! `runnel demo`.

use std::path::PathBuf;
use std::process::ExitCode;

/// Stream a real Python program over a slow link, step by step
#[derive(clap::Args)]
pub struct Args {
    /// The link: lan, wifi, thin, 20ms-25mbit, or RTT-RATE[-LOSS]
    #[arg(long, default_value = "20ms-25mbit")]
    link: String,
    /// Keep the tree and the image in this folder for the next demo
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
}

/// Tells each step and ends with a table.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = ::bench::demo::Options { link: args.link, work: args.work, ..::bench::demo::Options::default() };
    ::bench::demo::run(&options, &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}
