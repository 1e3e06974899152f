//! What another daemon has made that runs the same section.

use std::fmt;

use crate::cluster::ObjectKey;

/// So many objects that another one made are no coincidence.
const COINCIDENCES: u64 = 3;

/// Local objects that bear this section's marks, and that it has not made.
#[derive(Debug, Default)]
pub(crate) struct Twin {
    made: u64,
    first: Option<ObjectKey>,
}

impl fmt::Display for Twin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.as_ref().map(|key| format!(", the first {key}")).unwrap_or_default();
        write!(
            formatter,
            "another daemon seems to run this section: {} objects were made with its field manager before it made them{first}",
            self.made
        )
    }
}

impl Twin {
    /// Another one has made this object. Returns what that says, where it is no coincidence any more.
    pub(crate) fn made_another(&mut self, key: &ObjectKey) -> Option<String> {
        self.made += 1;
        self.first.get_or_insert_with(|| key.clone());
        (self.made == COINCIDENCES).then(|| self.to_string())
    }

    /// The other daemon, where there seems to be one.
    pub(crate) fn seen(&self) -> Option<String> {
        (self.made >= COINCIDENCES).then(|| self.to_string())
    }
}
