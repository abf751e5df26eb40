//! Numbers as people read them. Thin spaces and signs are plain Unicode, fit for HTML and for a
//! terminal.

/// A time: `312 ms`, `85.2 µs`, `12.4 s`.
pub fn seconds(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1.0 || magnitude == 0.0 {
        format!("{} s", significant(value))
    } else if magnitude >= 1e-3 {
        format!("{} ms", significant(value * 1e3))
    } else {
        format!("{} µs", significant(value * 1e6))
    }
}

/// A size in decimal units, as links are measured: `5.95 MB`.
pub fn bytes(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 1e6 => format!("{} MB", significant(value / 1e6)),
        magnitude if magnitude >= 1e3 => format!("{} kB", significant(value / 1e3)),
        _ => format!("{:.0} B", value.round() + 0.0),
    }
}

/// A share as percent: 0.756 is `75.6 %`.
pub fn percent(share: f64) -> String {
    // Rounded first, then zero added: neither -0 nor what rounds to it keeps its sign.
    format!("{:.1} %", (share * 1000.0).round() / 10.0 + 0.0)
}

/// A quotient: `1.25x`.
pub fn ratio(value: f64) -> String {
    format!("{}x", if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") })
}

/// A count, in groups of three digits from ten thousand on.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let sign = if value < 0.0 && digits != "0" { "-" } else { "" };
    if digits.len() < 5 {
        return format!("{sign}{digits}");
    }
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}")
}

/// Three significant digits, without an exponent.
pub fn significant(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 99.95 || magnitude == 0.0 {
        format!("{:.0}", value + 0.0)
    } else if magnitude >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Without digits that say nothing: for round numbers, as ticks and demands are.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// The smallest and the largest of labelled values: `20.1 % (gcc) to 60.7 % (perl)`; `None` if
/// there are none.
pub fn range(values: &[(String, f64)], show: impl Fn(f64) -> String) -> Option<String> {
    let low = values.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let high = values.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    if values.len() == 1 {
        return Some(format!("{} ({})", show(low.1), low.0));
    }
    Some(format!("{} ({}) to {} ({})", show(low.1), low.0, show(high.1), high.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.3124, 1.2345, 12.345, 123.4, 0.0000852, 0.0].map(seconds);
        assert_eq!(shown, ["312 ms", "1.23 s", "12.3 s", "123 s", "85.2 µs", "0 s"]);
        assert_eq!([5_950_000.0, 1500.0, 12.0].map(bytes), ["5.95 MB", "1.50 kB", "12 B"]);
        assert_eq!([9999.0, 12345.0, 1234567.0].map(count), ["9999", "12\u{202f}345", "1\u{202f}234\u{202f}567"]);
        assert_eq!((percent(0.7564), ratio(1.2549), ratio(123.4)), ("75.6 %".into(), "1.25x".into(), "123x".into()));
    }

    #[test]
    fn ranges_name_their_ends() {
        let values = [("gcc".to_string(), 0.6), ("perl".to_string(), 0.2)];
        assert_eq!(range(&values, percent).as_deref(), Some("20.0 % (perl) to 60.0 % (gcc)"));
        assert_eq!(range(&values[..1], percent).as_deref(), Some("60.0 % (gcc)"));
        assert_eq!(range(&[], percent), None);
    }
}
