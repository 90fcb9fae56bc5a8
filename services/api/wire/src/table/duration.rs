//! Durations as people read them.

use jiff::{SignedDuration, Timestamp};

/// Two figures at most, coarser as it grows: `90s`, `4m30s`, `3h5m`, `2d4h`, `1y30d`. What Go's
/// `duration.HumanDuration` says. Up to two seconds in the future still count as now, since clocks differ.
pub fn human_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match () {
        _ if seconds < -1 => "<invalid>".to_owned(),
        _ if seconds < 0 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// How long before `now` that was.
pub(super) fn since(then: Timestamp, now: Timestamp) -> String {
    human_duration(now.duration_since(then))
}
