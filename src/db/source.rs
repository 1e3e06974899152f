//! Where the URL of a database is, and what stands there now.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::url::{DatabaseUrl, InvalidUrl};

/// Where the URL of a database is: it holds a password, and may stand in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseSource {
    /// Right here.
    Url(Box<DatabaseUrl>),
    /// In a file, as its only line. It is read for each new connection, so that a rotated password needs no restart.
    File(PathBuf),
}

/// Why there is no URL.
#[derive(Debug, thiserror::Error)]
pub enum UnusableUrl {
    /// The file can't be read.
    #[error("failed to read the database's URL from {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What stands in the file is no URL.
    #[error("failed to understand the database's URL in {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: InvalidUrl,
    },
}

impl DatabaseSource {
    /// The URL as it is now.
    pub fn url(&self) -> Result<DatabaseUrl, UnusableUrl> {
        match self {
            Self::Url(url) => Ok(DatabaseUrl::clone(url)),
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|source| UnusableUrl::Read { path: path.clone(), source })?
                .trim()
                .parse()
                .map_err(|source| UnusableUrl::Parse { path: path.clone(), source }),
        }
    }
}

/// The URL that was read last. Clones share it.
#[derive(Clone)]
pub(super) struct Current {
    source: DatabaseSource,
    /// With the number of times that it has changed.
    last: Arc<Mutex<(u64, Option<DatabaseUrl>)>>,
}

impl Current {
    pub(super) fn new(source: DatabaseSource) -> Self {
        // One that can't be read now may be there when the first connection is made.
        let last = source.url().ok();
        Self { source, last: Arc::new(Mutex::new((0, last))) }
    }

    /// Reads the URL anew; with it the number of times that it has changed. May wait for a disk.
    pub(super) fn read(&self) -> Result<(u64, DatabaseUrl), UnusableUrl> {
        let url = self.source.url()?;
        let mut last = self.last.lock();
        if last.1.as_ref() != Some(&url) {
            last.0 += 1;
            last.1 = Some(url.clone());
        }
        Ok((last.0, url))
    }

    /// How often the URL has changed.
    pub(super) fn changes(&self) -> u64 {
        self.last.lock().0
    }

    /// The URL that was read last.
    pub(super) fn last(&self) -> Option<DatabaseUrl> {
        self.last.lock().1.clone()
    }

    /// Host, port and database; where the URL could not be read yet, the file.
    pub(super) fn place(&self) -> String {
        match (&self.last.lock().1, &self.source) {
            (Some(url), _) => url.place(),
            (None, DatabaseSource::Url(url)) => url.place(),
            (None, DatabaseSource::File(path)) => format!("as {} says", path.display()),
        }
    }
}
