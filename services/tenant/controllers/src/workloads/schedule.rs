//! Cron schedules: when is the next time.

use std::collections::BTreeSet;

use base_clock::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};

/// `minute hour day-of-month month day-of-week`, or `@daily` and the like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    days: BTreeSet<i8>,
    months: BTreeSet<i8>,
    weekdays: BTreeSet<i8>,
    /// Both kinds of day are restricted: then either will do.
    either_day: bool,
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    pub fn parse(text: &str) -> Option<Schedule> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else { return None };
        let mut weekdays = field(weekday, 0, 7, WEEKDAYS, 0)?;
        if weekdays.remove(&7) {
            weekdays.insert(0);
        }
        let open = |text: &str| text.starts_with('*') || text.starts_with('?');
        Some(Schedule {
            minutes: field(minute, 0, 59, &[], 0)?,
            hours: field(hour, 0, 23, &[], 0)?,
            days: field(day, 1, 31, &[], 0)?,
            months: field(month, 1, 12, MONTHS, 1)?,
            weekdays,
            either_day: !open(day) && !open(weekday),
        })
    }

    /// The first moment after `at`; `None` when there is none in five years (the 30th of February).
    pub fn next(&self, at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = zone.to_datetime(at);
        let mut time = step(start.date().at(start.hour(), start.minute(), 0, 0), 1.minute())?;
        let last_year = start.year().checked_add(5)?;
        while time.year() <= last_year {
            if !self.months.contains(&time.month()) {
                time = step(time.date().first_of_month().at(0, 0, 0, 0), 1.month())?;
            } else if !self.is_day(&time) {
                time = step(time.date().at(0, 0, 0, 0), 1.day())?;
            } else if !self.hours.contains(&time.hour()) {
                time = step(time.date().at(time.hour(), 0, 0, 0), 1.hour())?;
            } else if !self.minutes.contains(&time.minute()) {
                time = step(time, 1.minute())?;
            } else {
                // An hour that a clock change skips or repeats is taken as people would.
                let found = zone.to_ambiguous_zoned(time).compatible().ok()?.timestamp();
                if found > at {
                    return Some(found);
                }
                time = step(time, 1.minute())?;
            }
        }
        None
    }

    fn is_day(&self, time: &DateTime) -> bool {
        let day = self.days.contains(&time.day());
        let weekday = self.weekdays.contains(&time.weekday().to_sunday_zero_offset());
        if self.either_day { day || weekday } else { day && weekday }
    }
}

fn step(time: DateTime, by: Span) -> Option<DateTime> {
    time.checked_add(by).ok()
}

fn field(text: &str, least: i8, most: i8, names: &[&str], first_name: i8) -> Option<BTreeSet<i8>> {
    let number = |text: &str| -> Option<i8> {
        let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
        let value = match named {
            Some(at) => i8::try_from(at).ok()? + first_name,
            None => text.parse().ok()?,
        };
        (least..=most).contains(&value).then_some(value)
    };
    let mut values = BTreeSet::new();
    for part in text.split(',') {
        let (range, by) = match part.split_once('/') {
            Some((range, by)) => (range, Some(by.parse::<u8>().ok().filter(|by| *by > 0)?)),
            None => (part, None),
        };
        let (first, last) = match (range, range.split_once('-')) {
            ("*" | "?", _) => (least, most),
            (_, Some((first, last))) => (number(first)?, number(last)?),
            // `5/15` means from 5 on.
            (one, None) => (number(one)?, if by.is_some() { most } else { number(one)? }),
        };
        if first > last {
            return None;
        }
        values.extend((first..=last).step_by(usize::from(by.unwrap_or(1))));
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_found() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap_or(TimeZone::UTC);
        let utc = TimeZone::UTC;
        for (schedule, at, zone, wanted) in [
            ("* * * * *", "2026-11-30T21:05:48Z", &utc, "2026-11-30T21:06:00Z"),
            ("*/15 * * * *", "2026-11-30T21:45:00Z", &utc, "2026-11-30T22:00:00Z"),
            ("0 0 * * *", "2026-11-30T21:05:48Z", &utc, "2026-12-01T00:00:00Z"),
            ("@hourly", "2026-11-30T21:00:00Z", &utc, "2026-11-30T22:00:00Z"),
            ("30 4 1,15 * fri", "2026-11-30T21:00:00Z", &utc, "2026-12-01T04:30:00Z"),
            ("30 4 * * MON-WED", "2026-12-02T05:00:00Z", &utc, "2026-12-07T04:30:00Z"),
            ("0 12 29 feb *", "2026-11-30T21:00:00Z", &utc, "2028-02-29T12:00:00Z"),
            ("0 9 * * 7", "2026-11-30T21:00:00Z", &utc, "2026-12-06T09:00:00Z"),
        ] {
            let at: Timestamp = at.parse().unwrap();
            let got = Schedule::parse(schedule).and_then(|one| one.next(at, zone));
            assert_eq!(got.map(|at| at.to_string()), Some(wanted.to_owned()), "{schedule}");
        }
        let at: Timestamp = "2026-11-30T21:00:00Z".parse().unwrap();
        assert_eq!(Schedule::parse("0 0 30 2 *").unwrap().next(at, &berlin), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "* * * *", "60 * * * *", "* * 0 * *", "*/0 * * * *", "5-1 * * * *", "a * * * *", "@never"]
        {
            assert_eq!(Schedule::parse(text), None, "{text:?}");
        }
    }
}
