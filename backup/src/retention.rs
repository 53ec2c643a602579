//! Rules of retention, as pure functions.
//!
//! Kept are the newest two, all of the last hour, and for `keep` the last one of each hour. Times
//! are those of the bases themselves, and the caller counts how long nothing has changed since the
//! newest one. A clock that jumps changes what is dense, and never takes the newest two.

use std::collections::BTreeMap;

const HOUR: u64 = 3600;
/// Number of the newest bases that are kept, however old they are.
const NEWEST: usize = 2;

/// Numbers of the bases that are to go. `bases` has the time of each, in seconds, by number; the
/// newest one is `quiet_seconds` old.
pub(crate) fn expired(
    bases: &BTreeMap<u64, u64>,
    keep_seconds: u64,
    quiet_seconds: u64,
) -> Vec<u64> {
    let Some((_, newest)) = bases.last_key_value() else { return Vec::new() };
    let now = newest.saturating_add(quiet_seconds);
    let mut last_of_hour = BTreeMap::new();
    for (number, made) in bases {
        last_of_hour.insert(made / HOUR, *number);
    }
    let newest: Vec<u64> = bases.keys().rev().take(NEWEST).copied().collect();
    let is_kept = |number: &u64, made: &u64| {
        let age = now.abs_diff(*made);
        let is_last = last_of_hour.get(&(made / HOUR)) == Some(number);
        newest.contains(number) || age <= keep_seconds && (age <= HOUR || is_last)
    };
    bases
        .iter()
        .filter(|(number, made)| !is_kept(number, made))
        .map(|(number, _)| *number)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * HOUR;

    /// Bases that are left of one every five minutes.
    fn kept_after(count: u64, keep: u64) -> BTreeMap<u64, u64> {
        let mut bases = BTreeMap::new();
        for number in 0..count {
            bases.insert(number, 1_000_000 * HOUR + number * 300);
            expired(&bases, keep, 0).iter().for_each(|number| {
                bases.remove(number);
            });
        }
        bases
    }

    #[test]
    fn for_a_day_there_is_one_of_each_hour_and_then_every_five_minutes() {
        let bases = kept_after(12 * 72, DAY);
        let newest = *bases.values().max().unwrap();
        let ages: Vec<u64> = bases.values().map(|made| newest - made).collect();
        assert_eq!(ages.iter().filter(|age| **age <= HOUR).count(), 13);
        assert!((36..=38).contains(&ages.len()), "{ages:?}");
        assert!(ages.iter().all(|age| *age <= DAY));
        let gaps = bases.values().zip(bases.values().skip(1)).map(|(a, b)| b - a);
        assert!(gaps.max().unwrap() <= HOUR);
    }

    #[test]
    fn the_newest_two_are_kept_however_old_they_are() {
        assert_eq!(kept_after(100, 0).len(), 2);
        let apart = BTreeMap::from([(1, 0), (2, 100 * DAY), (3, 200 * DAY)]);
        assert_eq!(expired(&apart, DAY, 0), [1]);
        assert_eq!(expired(&BTreeMap::from([(1, 5)]), 0, 0), [0; 0]);
        assert_eq!(expired(&BTreeMap::new(), 0, 0), [0; 0]);
    }

    #[test]
    fn a_clock_that_jumps_leaves_the_newest_two() {
        let back = BTreeMap::from([(1, 50 * DAY), (2, 50 * DAY + 300), (3, 7), (4, 307)]);
        assert_eq!(expired(&back, DAY, 0), [1, 2]);
        let forth = BTreeMap::from([(1, 7), (2, 307), (3, 607), (4, 50 * DAY)]);
        assert_eq!(expired(&forth, DAY, 0), [1, 2]);
    }

    #[test]
    fn bases_expire_while_nothing_changes_and_the_newest_two_stay() {
        let bases = (0..48).map(|number| (number, number * HOUR)).collect();
        assert_eq!(expired(&bases, DAY, 0).len(), 23);
        assert_eq!(expired(&bases, DAY, 10 * HOUR).len(), 33);
        assert_eq!(expired(&bases, DAY, 100 * DAY).len(), 46);
    }
}
