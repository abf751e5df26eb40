//! Safe ptrace, seccomp and perf; the only crate with their `unsafe`.
