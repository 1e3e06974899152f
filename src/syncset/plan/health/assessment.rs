//! What one reading of an object says of its health.

use serde::{Deserialize, Serialize};

/// An object whose status is empty: it may be one whose controller has not seen it, or one that never has a status.
pub(super) const NO_STATUS: &str = "NoStatus";
/// Most characters of a message.
pub(super) const LONGEST_MESSAGE: usize = 256;
/// Most characters of a condition's reason.
const LONGEST_REASON: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectStatus {
    Current,
    Progressing,
    /// It has no status at all: after a while that counts as current.
    NoStatus,
    /// It has a status that no rule understands, or could not be read.
    Unknown,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub status: ObjectStatus,
    /// In a word.
    pub reason: String,
    /// At most 256 characters.
    pub message: String,
}

impl Assessment {
    pub fn current() -> Self {
        Self { status: ObjectStatus::Current, reason: String::new(), message: String::new() }
    }

    pub fn of(status: ObjectStatus, reason: &str, message: &str) -> Self {
        let is_word = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | ':');
        let reason: String = reason.chars().filter(is_word).take(LONGEST_REASON).collect();
        Self { status, reason, message: shortened(message, LONGEST_MESSAGE) }
    }

    pub(super) fn progressing(reason: &str, message: impl AsRef<str>) -> Self {
        Self::of(ObjectStatus::Progressing, reason, message.as_ref())
    }

    pub(super) fn failed(reason: &str, message: impl AsRef<str>) -> Self {
        Self::of(ObjectStatus::Failed, reason, message.as_ref())
    }
}

/// The beginning of a text, in one line.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let line = |letter: char| if letter.is_control() { ' ' } else { letter };
    if text.chars().nth(most).is_none() {
        return text.chars().map(line).collect();
    }
    text.chars().take(most.saturating_sub(1)).map(line).chain(['…']).collect()
}
