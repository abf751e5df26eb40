//! Dates and times for people.

/// `YYYY-MM-DD HH:MM` in UTC of a time in seconds since 1970, by counting days in the 400-year
/// cycle of the Gregorian calendar from 1 March 2000 (years that begin in March have their leap day
/// last).
pub fn date(seconds: i64) -> String {
    const DAYS_TO_2000_03_01: i64 = 11_017;
    const CYCLE_DAYS: i64 = 146_097;
    let (days, clock) = (seconds.div_euclid(86_400) - DAYS_TO_2000_03_01, seconds.rem_euclid(86_400));
    let (cycle, day) = (days.div_euclid(CYCLE_DAYS), days.rem_euclid(CYCLE_DAYS));
    let century = (day / 36_524).min(3);
    let day = day - century * 36_524;
    let four = day / 1_461;
    let day = day - four * 1_461;
    let year = (day / 365).min(3);
    let day = day - year * 365;
    // Months from March have 31, 30, 31, 30, 31 days, and that again: 153 days in five.
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let year = 2000 + 400 * cycle + 100 * century + 4 * four + year + i64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{year:04}-{month:02}-{day_of_month:02} {:02}:{:02}", clock / 3600, clock / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (4_107_542_399, "2100-02-28 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
            (1_709_164_800, "2024-02-29 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
        ] {
            assert_eq!(date(seconds), text, "{seconds}");
        }
    }
}
