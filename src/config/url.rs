//! URLs that hold a password, and so may be kept in a file of their own.

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

/// The URL of a server. It is displayed as the place where it leads, without who connects.
pub trait ServerUrl: Clone + Display + FromStr<Err: Error + Send + Sync + 'static> {
    /// What errors call it.
    const NAME: &'static str;
}

/// Where a URL comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlSource<U> {
    Url(Box<U>),
    /// A file with the URL as its only line. It is read for each new connection, so that rotating the password needs no restart.
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum UnusableUrl {
    #[error("failed to read the {what} from {}", path.display())]
    Read { what: &'static str, path: PathBuf, source: std::io::Error },
    /// The content of the file is not a URL.
    #[error("invalid {what} in {}", path.display())]
    Parse { what: &'static str, path: PathBuf, source: Box<dyn Error + Send + Sync> },
}

impl<U: ServerUrl> UrlSource<U> {
    /// The current URL. May block on the disk.
    pub fn url(&self) -> Result<U, UnusableUrl> {
        match self {
            Self::Url(url) => Ok(U::clone(url)),
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|source| UnusableUrl::Read { what: U::NAME, path: path.clone(), source })?
                .trim()
                .parse()
                .map_err(|error: U::Err| UnusableUrl::Parse {
                    what: U::NAME,
                    path: path.clone(),
                    source: error.into(),
                }),
        }
    }

    /// Where it leads; before the URL could be read, the file's path. May block on the disk.
    pub fn place(&self) -> String {
        self.place_of(self.url().ok().as_ref())
    }

    /// The same by the URL that was read last.
    pub fn place_of(&self, last: Option<&U>) -> String {
        match (last, self) {
            (Some(url), _) => url.to_string(),
            (None, Self::Url(url)) => url.to_string(),
            (None, Self::File(path)) => format!("as {} says", path.display()),
        }
    }
}
