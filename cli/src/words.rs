//! Times and counts in words, for people.

/// A time in milliseconds, for people.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        ms => format!("{} days", ms / 86_400_000),
    }
}

/// `1 message`, `2 messages`.
pub fn several(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// The most that may be there, as a part of a sentence.
pub fn most(max: u64) -> String {
    format!("{max} {} the most", if max == 1 { "is" } else { "are" })
}
