//! The id of a row of `spec`.

use std::fmt;
use std::str::FromStr;

/// The id of a row of `spec`: a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub(in crate::status_sync) u128);

/// The string is not a UUID.
#[derive(Debug)]
pub struct NoUuid;

impl FromStr for RowId {
    type Err = NoUuid;

    fn from_str(text: &str) -> Result<Self, NoUuid> {
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        if text.len() != 36 || digits.len() != 32 {
            return Err(NoUuid);
        }
        u128::from_str_radix(&digits, 16).map(Self).map_err(|_| NoUuid)
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let part = |range| digits.get(range).unwrap_or_default();
        write!(formatter, "{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
    }
}

impl fmt::Debug for RowId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_id_is_written_as_it_is_read() {
        let text = "0b81d5a4-8e0f-4c38-9d7a-0123456789ab";
        assert_eq!(text.parse::<RowId>().unwrap().to_string(), text);
        for wrong in ["", "0b81d5a4", "0b81d5a48e0f4c389d7a0123456789ab", "0b81d5a4-8e0f-4c38-9d7a-0123456789zz"] {
            assert!(wrong.parse::<RowId>().is_err(), "{wrong}");
        }
    }
}
