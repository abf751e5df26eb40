//! Time as metadata have it: seconds in UTC.

use std::fmt;

use units::date;

/// Seconds since 1970 in UTC, without leap seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub i64);

impl UnixTime {
    /// Reads `YYYY-MM-DDTHH:MM:SSZ`. A fraction of a second is cut off: some writers have one.
    pub(crate) fn parse(text: &str) -> Option<UnixTime> {
        let bytes = text.as_bytes();
        let (head, tail) = bytes.split_at_checked(19)?;
        let number = |from: usize, to: usize| {
            let digits = &head[from..to];
            let value = digits.iter().fold(0i64, |value, digit| value * 10 + i64::from(digit.wrapping_sub(b'0')));
            digits.iter().all(u8::is_ascii_digit).then_some(value)
        };
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        let fraction = tail.strip_suffix(b"Z")?;
        let is_fraction =
            fraction.is_empty() || matches!(fraction, [b'.', digits @ ..] if digits.iter().all(u8::is_ascii_digit));
        if !is_fraction || !separators.iter().all(|(at, separator)| head[*at] == *separator) {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let fits = (1..=12).contains(&month) && day >= 1 && day <= month_days(year, month);
        if !fits || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        // Years that begin in March have their leap day last; months from March have 31, 30, 31,
        // 30, 31 days, and that again.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let days = days + (153 * month + 2) / 5 + day - 1 - DAYS_TO_1970;
        Some(UnixTime(days * 86_400 + hour * 3600 + minute * 60 + second))
    }
}

/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_468;

fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} UTC", date(self.0))
    }
}
