//! Names of hours' directories: `YYYY-MM-DD-HH`, in UTC.

use base::{EntryName, Time};

pub(super) const HOUR_SECONDS: i64 = 3600;
pub(super) const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;

/// The name of an hour.
pub(super) fn name_of(now: Time) -> EntryName {
    let days = now.sec.div_euclid(DAY_SECONDS);
    let hour = now.sec.rem_euclid(DAY_SECONDS) / HOUR_SECONDS;
    let (year, month, day) = civil(days);
    let text = format!("{year:04}-{month:02}-{day:02}-{hour:02}");
    EntryName::new(text.as_bytes()).expect("digits and dashes are a name")
}

/// Seconds since 1970 at which an hour began; `None` for a name that is not an hour's.
pub(super) fn begin_of(name: &EntryName) -> Option<i64> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    let numbers: Vec<i64> =
        text.split('-').map(|part| part.parse().ok()).collect::<Option<Vec<i64>>>()?;
    let [year, month, day, hour] = numbers[..] else { return None };
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day) && (0..24).contains(&hour);
    (is_date && (0..10_000).contains(&year))
        .then(|| days_to(year, month, day) * DAY_SECONDS + hour * HOUR_SECONDS)
}

/// Year, month and day of a day since 1970 (Hinnant, `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970 of a date: the inverse of [`civil`] (`days_from_civil`).
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_named_and_read_again() {
        let named = |sec| name_of(Time { sec, nsec: 0 }).to_string();
        assert_eq!(named(0), "1970-01-01-00");
        assert_eq!(named(951_782_400 + 23 * 3600 + 59), "2000-02-29-23");
        assert_eq!(named(1_795_280_400), "2026-11-21-17");
        for sec in (0..4_000_000_000).step_by(99_991) {
            let begin = begin_of(&name_of(Time { sec, nsec: 0 }));
            assert_eq!(begin, Some(sec - sec % HOUR_SECONDS));
        }
        for none in ["x", "2026-11-21", "2026-13-01-00", "2026-01-01-24", "2026-01-01-00-1"] {
            assert_eq!(begin_of(&EntryName::new(none.as_bytes()).unwrap()), None);
        }
    }
}
