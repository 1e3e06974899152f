//! Signs of another daemon that runs the same section.

use std::fmt;

use crate::cluster::ObjectKey;

/// This many objects of another daemon are no coincidence.
const COINCIDENCES: u64 = 3;

/// Local objects with this section's marks that it has not created.
#[derive(Debug, Default)]
pub(crate) struct Duplicate {
    made: u64,
    first: Option<ObjectKey>,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.as_ref().map(|key| format!(", the first {key}")).unwrap_or_default();
        write!(
            formatter,
            "another daemon seems to run this section: {} objects were created with its field manager, but not by this daemon{first}",
            self.made
        )
    }
}

impl Duplicate {
    /// Records an object that another daemon has created. Returns the message, once it is no coincidence any more.
    pub(crate) fn made_another(&mut self, key: &ObjectKey) -> Option<String> {
        self.made += 1;
        self.first.get_or_insert_with(|| key.clone());
        (self.made == COINCIDENCES).then(|| self.to_string())
    }

    /// The message about another daemon, if there seems to be one.
    pub(crate) fn seen(&self) -> Option<String> {
        (self.made >= COINCIDENCES).then(|| self.to_string())
    }
}
