//! `runnel push`.

use std::path::PathBuf;
use std::process::ExitCode;

use client::Config;
use client::upload::{News, Progress, upload};
use connection::{Remote, Target};

use crate::command::trust::TrustArgs;
#[cfg(feature = "full")]
use crate::command::trust::{PassphraseArgs, sign_push};
use crate::{failure, progress};

/// Upload an image: only the blocks the server lacks, then the tag switches in one step
#[derive(clap::Args)]
pub struct Args {
    /// The image file
    image: PathBuf,
    /// runnel://host/name[:tag], or runnels:// for TLS
    target: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Sign the name with the keys in this folder of `runnel trust init`; if its role demands more
    /// signatures, devices run the earlier image until other holders have signed
    #[cfg(feature = "full")]
    #[arg(long, value_name = "DIR", help_heading = "Signed names")]
    sign: Option<PathBuf>,

    #[cfg(feature = "full")]
    #[command(flatten)]
    passphrase: PassphraseArgs,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Uploads and reports what travelled.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let remote = remote(&args)?;
    #[cfg(feature = "full")]
    let sign = match &args.sign {
        Some(folder) => Some(sign_push(folder, &args.passphrase, &remote, &args.trust)?),
        None => None,
    };
    let bar = progress::bytes(1, "uploading");
    let mut last = Progress::default();
    let mut config = Config::default();
    config.connection.trust = args.trust.trust()?;
    let mut interrupted = false;
    let outcome = upload(&args.image, &remote, &config, &mut |news| match news {
        News::Progress(state) => {
            interrupted &= state == last;
            last = state;
            bar.set_length(state.wanted_bytes);
            bar.set_position(state.sent_bytes.min(state.wanted_bytes));
        }
        News::Interrupted(error) => {
            // Once, however often it is tried.
            if !std::mem::replace(&mut interrupted, true) {
                bar.suspend(|| tell!("note: {error}; trying again"));
            }
        }
    });
    bar.finish_and_clear();
    let id = outcome?;
    #[cfg(feature = "full")]
    let signed = sign.map(|sign| sign(&args.image, id)).transpose()?;
    #[cfg(feature = "full")]
    let signer = signed.as_ref().and_then(|(role, outcome)| outcome.change().map(|_| role.clone()));
    #[cfg(not(feature = "full"))]
    let signer: Option<String> = None;
    if args.json {
        #[allow(unused_mut, reason = "devices do not sign")]
        let mut json = serde_json::json!({
            "target": args.target, "id": id.to_string(), "blocks": last.blocks,
            "blocks_present": last.blocks_present, "sent_bytes": last.sent_bytes, "signed_by": signer,
        });
        #[cfg(feature = "full")]
        if let Some((_, outcome)) = &signed {
            json["signing"] = outcome.json();
        }
        outln!("{json}");
    } else {
        outln!("{} is now {id}", args.target);
        outln!(
            "{} of {} blocks were there already, {} sent",
            last.blocks_present,
            last.blocks,
            progress::human(last.sent_bytes)
        );
        if let Some(signer) = signer {
            outln!("signed by role {signer}");
        }
        #[cfg(feature = "full")]
        if let Some((_, outcome)) = &signed {
            outcome.print(false)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where it goes; what is sure to fail is refused.
fn remote(args: &Args) -> anyhow::Result<Remote> {
    let wrong = |why: &str| failure::usage(format!("{}: {why}", args.target));
    let remote = match Target::parse(&args.target)? {
        Target::Remote(remote) => remote,
        Target::Volume(_) => return Err(wrong("names below volume/ are volumes; an image needs another name")),
        _ => return Err(wrong("push goes to runnel://host/name[:tag], where `runnel serve` runs")),
    };
    if args.image.is_dir() {
        let (folder, target) = (args.image.display(), &args.target);
        return Err(failure::usage(format!(
            "{folder} is a directory, and push takes an image\nhint: `runnel pack {folder} -o app.rnl`, then `runnel push \
             app.rnl {target}`"
        )));
    }
    Ok(remote)
}
