//! Ctrl-C and SIGTERM end a bench the orderly way: waits return an error, guards unmount and end
//! the children.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static INSTALLED: Once = Once::new();

/// Exit code after a second signal: 128 + SIGINT, what shells report.
const EXIT_CODE: i32 = 130;

/// Starts to listen for signals; from then on [`check`] tells. A second signal ends the process at
/// once.
pub fn listen() -> anyhow::Result<()> {
    let mut outcome = Ok(());
    INSTALLED.call_once(|| {
        let thread = std::thread::Builder::new().name("signals".into()).spawn(|| {
            if let Err(error) = wait_for_signals() {
                eprintln!("cannot listen for signals: {error}");
            }
        });
        outcome = thread.map(drop).context("cannot start the signal thread");
    });
    outcome
}

fn wait_for_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        for _ in 0..2 {
            if INTERRUPTED.load(Ordering::Relaxed) {
                eprintln!("\ninterrupted; ending the servers and mounts (again to stop at once)");
            }
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
        std::process::exit(EXIT_CODE);
    })
}

/// An error once a signal came. Every wait of the bench calls this.
pub fn check() -> anyhow::Result<()> {
    anyhow::ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
