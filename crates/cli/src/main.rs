//! The `runnel` binary.

fn main() -> std::process::ExitCode {
    runnel::start()
}
