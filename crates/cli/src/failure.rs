//! Errors into messages and exit codes. No other file prints errors.

use std::path::Path;
use std::process::ExitCode;

use client::{ClientError, Kind};
use connection::ConnectionError;

/// The table `--help` ends with.
pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 corrupt, truncated or unknown file; \
4 not found; 5 network or server failed; 6 some system calls are unknown (`syscalls --strict`, `specialise --image`); 7 the month's budget is used up (`pin`); 8 a new version does not work, and the previous one is in force again (`pin --health`). A signed name is refused: 20 rollback; 21 freeze; 22 expired; 23 files that do not belong together; 24 too few signatures; 25 anything else. `run`, `record`, `launch` and `enter` end as the program they started: with its code, or by its signal.";

/// The exit code of what is not signed as it must be, for reasons that have no code of their own.
pub const UNTRUSTED: u8 = 25;

/// An error of the command line itself, with its exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// The user asked for something that cannot be: exit code 2.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Failure { code: 2, text: text.into() }.into()
}

/// Refuses an address where only a file will do, instead of looking for a file of that name.
///
/// # Errors
/// [`usage`]: it is one.
pub fn no_address(file: &Path) -> anyhow::Result<()> {
    let text = file.to_string_lossy();
    let is_address = text.split_once("://").is_some_and(|(scheme, _)| {
        ["runnel", "runnels", "http", "https"].contains(&scheme) && std::fs::symlink_metadata(file).is_err()
    });
    if !is_address {
        return Ok(());
    }
    Err(usage(format!(
        "{text} is an address, and this takes a file\nhint: `runnel ls`, `cat`, `run` and `mount` take an address; files \
         can be copied out of a mount"
    )))
}

/// A file of ours that cannot be trusted: exit code 3.
pub fn corrupt(text: impl Into<String>) -> anyhow::Error {
    Failure { code: 3, text: text.into() }.into()
}

/// A thing that is not there: exit code 4.
pub fn not_found(text: impl Into<String>) -> anyhow::Error {
    Failure { code: 4, text: text.into() }.into()
}

/// A program that could not be started, with the exit code that shells give for that.
pub fn with_code(code: u8, text: impl Into<String>) -> anyhow::Error {
    Failure { code, text: text.into() }.into()
}

/// Prints an error and gives its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // A reader that has seen enough, as in `runnel ls … | head`, is no failure worth a message.
    if error.chain().any(is_broken_pipe) {
        return ExitCode::from(141);
    }
    tell!("error: {}", text_of(error));
    if error.chain().any(|cause| volume_error(cause).is_some_and(|error| error.kind() == stream::ErrorKind::Exposed)) {
        tell!("hint: give --insecure in a network that you trust, or --read-only to change nothing");
    }
    ExitCode::from(error.chain().find_map(code_of).unwrap_or(1))
}

/// The message with its causes, each said once: most of our errors tell their cause themselves.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if cause.starts_with(&format!("{text}: ")) {
            // Both name the file.
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The error of a volume, by itself or in a mount.
fn volume_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a stream::StreamError> {
    match error.downcast_ref::<::mount::MountError>() {
        Some(::mount::MountError::Volume(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

fn code_of(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Some(failure.code);
    }
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return Some(client_code(error));
    }
    if let Some(error) = error.downcast_ref::<ConnectionError>() {
        return Some(connection_code(error));
    }
    if let Some(error) = error.downcast_ref::<::mount::MountError>() {
        return Some(mount_code(error));
    }
    if let Some(error) = error.downcast_ref::<stream::StreamError>() {
        return Some(volume_code(error));
    }
    if let Some(error) = error.downcast_ref::<client::ReadError>() {
        return Some(if *error == client::ReadError::Corrupt { 3 } else { 5 });
    }
    if let Some(error) = error.downcast_ref::<client::pin::PinError>() {
        return Some(pin_code(error));
    }
    if error.is::<connection::TargetError>() || error.is::<::syscalls::ProfileError>() {
        return Some(2);
    }
    if let Some(error) = error.downcast_ref::<image::ImageError>() {
        return Some(image_code(error));
    }
    #[cfg(feature = "full")]
    if let Some(::pack::PackError::Incomplete { source, .. }) = error.downcast_ref() {
        return code_of(source.as_ref());
    }
    #[cfg(feature = "full")]
    if let Some(::pack::PackError::Image(error)) = error.downcast_ref() {
        return Some(image_code(error));
    }
    #[cfg(feature = "full")]
    if let Some(::pack::PackError::Closure(error)) = error.downcast_ref() {
        return Some(closure_code(error));
    }
    if let Some(::launch::LaunchError::NotFound(_)) = error.downcast_ref() {
        return Some(4);
    }
    #[cfg(feature = "full")]
    if let Some(error) = error.downcast_ref::<::kernel::KernelError>() {
        return Some(kernel_code(error));
    }
    #[cfg(feature = "full")]
    if let Some(error) = error.downcast_ref::<server::ServerError>() {
        return Some(match error {
            error if error.is_damage() => 3,
            error if error.is_usage() => 2,
            _ => 1,
        });
    }
    if let Some(error) = error.downcast_ref::<coverage::CoverageError>() {
        return Some(coverage_code(error));
    }
    #[cfg(feature = "full")]
    if let Some(error) = error.downcast_ref::<::syscalls::analysis::AnalysisError>() {
        return Some(analysis_code(error));
    }
    #[cfg(feature = "full")]
    if error.is::<::syscalls::PolicyError>() {
        return Some(2);
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return Some(if error.kind() == std::io::ErrorKind::NotFound { 4 } else { 1 });
    }
    None
}

/// Programs whose calls cannot be found.
#[cfg(feature = "full")]
fn analysis_code(error: &::syscalls::analysis::AnalysisError) -> u8 {
    use ::syscalls::analysis::AnalysisError;
    match error {
        AnalysisError::Missing { .. } | AnalysisError::Nothing => 4,
        AnalysisError::Closure(error) => closure_code(error),
        AnalysisError::Elf { .. } | AnalysisError::Machine { .. } => 3,
        _ => 1,
    }
}

/// Programs whose files cannot be found.
#[cfg(feature = "full")]
fn closure_code(error: &elf::ClosureError) -> u8 {
    match error {
        elf::ClosureError::NotFound { .. } => 4,
        elf::ClosureError::NotAProgram { .. } => 2,
        elf::ClosureError::Elf { .. } => 3,
        elf::ClosureError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 4,
        _ => 1,
    }
}

/// A kernel that cannot be specialised.
#[cfg(feature = "full")]
fn kernel_code(error: &::kernel::KernelError) -> u8 {
    use ::kernel::KernelError;
    use specialise::SpecialiseError;
    match error {
        KernelError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 4,
        KernelError::Io { .. } | KernelError::Tool { .. } | KernelError::Recording { .. } => 1,
        KernelError::Coverage { source, .. } => coverage_code(source),
        KernelError::NotSource { .. } | KernelError::Config { .. } | KernelError::Input { .. } => 2,
        KernelError::Calls { .. } => 2,
        KernelError::UnknownCalls { .. } => 6,
        KernelError::Specialise(SpecialiseError::NotFound { .. }) => 4,
        KernelError::Specialise(SpecialiseError::Fixed { .. }) => 2,
        KernelError::Specialise(_) | KernelError::Object { .. } => 3,
    }
}

/// A coverage that cannot be read or made.
fn coverage_code(error: &coverage::CoverageError) -> u8 {
    use coverage::CoverageError;
    match error {
        CoverageError::Releases { .. } | CoverageError::Label { .. } | CoverageError::Nothing => 2,
        _ => 3,
    }
}

/// A damaged image, or one that cannot be made.
fn image_code(error: &image::ImageError) -> u8 {
    match error {
        image::ImageError::Limit { .. } | image::ImageError::Unwritable { .. } => 1,
        _ => 3,
    }
}

fn client_code(error: &ClientError) -> u8 {
    match error {
        ClientError::Connection(error) => connection_code(error),
        ClientError::NotATag(_) | ClientError::NoImage { .. } => 2,
        ClientError::Image { .. } | ClientError::BadRoot { .. } => 3,
        ClientError::Refused { refusal, .. } => refusal_code(refusal),
        ClientError::Unsigned { .. } | ClientError::UnverifiedPin { .. } | ClientError::NotSigned { .. } => UNTRUSTED,
        ClientError::NoSuchFile { .. } => 4,
        ClientError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 4,
        ClientError::File { .. } => 1,
        _ => 5,
    }
}

/// What is wrong with a signed name.
pub fn refusal_code(refusal: &client::Refusal) -> u8 {
    match refusal.kind() {
        Kind::NotFound => 4,
        Kind::Rollback => 20,
        Kind::Freeze => 21,
        Kind::Expired => 22,
        Kind::Mixed => 23,
        Kind::Signature => 24,
        _ => UNTRUSTED,
    }
}

/// A pin that is not complete.
fn pin_code(error: &client::pin::PinError) -> u8 {
    match error {
        client::pin::PinError::Client(error) => client_code(error),
        client::pin::PinError::Budget { .. } => 7,
        _ => 1,
    }
}

fn connection_code(error: &ConnectionError) -> u8 {
    match error {
        ConnectionError::Refused { code: wire::ErrorCode::NotFound, .. } => 4,
        ConnectionError::Trust { .. } | ConnectionError::System(_) => 1,
        _ => 5,
    }
}

/// A volume that cannot be opened.
fn volume_code(error: &stream::StreamError) -> u8 {
    match error.kind() {
        stream::ErrorKind::NotFound => 4,
        stream::ErrorKind::Timeout | stream::ErrorKind::Protocol | stream::ErrorKind::NoVolumes => 5,
        _ => 1,
    }
}

fn mount_code(error: &::mount::MountError) -> u8 {
    match error {
        ::mount::MountError::Session(error) => client_code(error),
        ::mount::MountError::Volume(error) => volume_code(error),
        ::mount::MountError::Missing { .. } | ::mount::MountError::NotInImage { .. } => 4,
        ::mount::MountError::NotMounted { .. } => 4,
        ::mount::MountError::Step { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 4,
        ::mount::MountError::Config { .. } => 2,
        other => other.exit_code().clamp(1, 255) as u8,
    }
}
