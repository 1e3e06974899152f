//! Where the database URL comes from, and its current value.

use std::sync::Arc;

use parking_lot::Mutex;

use super::url::DatabaseUrl;
use crate::config::url::{UnusableUrl, UrlSource};

pub type DatabaseSource = UrlSource<DatabaseUrl>;

/// The URL that was read last. Clones share it. A lock, since every connection attempt and the pool's checks look at it, and
/// it is never held while the file is read.
#[derive(Clone)]
pub(super) struct Current {
    source: DatabaseSource,
    /// The number of changes so far, and the URL.
    last: Arc<Mutex<(u64, Option<DatabaseUrl>)>>,
}

impl Current {
    pub(super) fn new(source: DatabaseSource) -> Self {
        // A file that can't be read yet may exist when the first connection is made.
        let last = source.url().ok();
        Self { source, last: Arc::new(Mutex::new((0, last))) }
    }

    /// Reads the URL again, and returns it with the number of changes so far. May block on the disk.
    pub(super) fn read(&self) -> Result<(u64, DatabaseUrl), UnusableUrl> {
        let url = self.source.url()?;
        let mut last = self.last.lock();
        if last.1.as_ref() != Some(&url) {
            last.0 += 1;
            last.1 = Some(url.clone());
        }
        Ok((last.0, url))
    }

    /// The number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.last.lock().0
    }

    /// The URL that was read last.
    pub(super) fn last(&self) -> Option<DatabaseUrl> {
        self.last.lock().1.clone()
    }

    /// Host, port and database; before the URL could be read, the file's path.
    pub(super) fn place(&self) -> String {
        self.source.place_of(self.last.lock().1.as_ref())
    }
}
