//! Spans of time on the command line.

use std::time::Duration;

/// What a message says of their form.
pub const TIME: &str = "a number with s, m, h, d or w behind it, such as 30d";

/// A span of time such as `90s`, `12h` or `30d`.
///
/// # Errors
/// What is expected.
pub fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time: write {TIME}");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        'w' => 7 * 24 * 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_mistakes_are_named() {
        for (text, seconds) in
            [("0s", 0), ("90s", 90), ("5m", 300), ("2h", 7200), ("30d", 30 * 86_400), ("2w", 14 * 86_400)]
        {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "d", "-1d", "30", "3x", "99999999999999999w", "1ö"] {
            assert!(time(wrong).is_err(), "{wrong:?}");
        }
    }
}
