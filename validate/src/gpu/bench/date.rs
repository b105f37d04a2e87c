//! Current date in the format of measurement files.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current UTC time in the form `2026-11-21T04:00:00Z`.
pub(super) fn now() -> String {
    text(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()))
}

/// Formats seconds since 1970-01-01 as a UTC date. Years begin in March, so that the leap day is the last day of a year
/// (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn text(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_known_timestamps() {
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(text(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(text(1_795_219_200), "2026-11-21T00:00:00Z");
    }
}
