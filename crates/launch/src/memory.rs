//! How much memory a prefetch may fill.

use std::fs;

/// Bytes that can be used without swapping, as the kernel estimates (`MemAvailable`); `None` where
/// /proc does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_the_kernels_text() {
        assert_eq!(parse("MemTotal: 9 kB\nMemAvailable:   24000 kB\n"), Some(24000 * 1024));
        assert_eq!(parse("MemTotal: 9 kB\n"), None);
        assert_eq!(parse("MemAvailable: x kB\n"), None);
    }
}
