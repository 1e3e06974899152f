//! Where the broker's URL comes from, and its current value.

use std::path::PathBuf;

use super::url::{AmqpUrl, InvalidUrl};

/// Where the broker's URL comes from. It holds a password, and so may be kept in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmqpSource {
    Url(Box<AmqpUrl>),
    /// A file with the URL as its only line. It is read for each new connection, so that rotating the password needs no restart.
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum UnusableUrl {
    #[error("failed to read the broker's URL from {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The content of the file is not a URL.
    #[error("invalid URL of the broker in {}", path.display())]
    Parse { path: PathBuf, source: InvalidUrl },
}

impl AmqpSource {
    /// The current URL. May block on the disk.
    pub fn url(&self) -> Result<AmqpUrl, UnusableUrl> {
        match self {
            Self::Url(url) => Ok(AmqpUrl::clone(url)),
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|source| UnusableUrl::Read { path: path.clone(), source })?
                .trim()
                .parse()
                .map_err(|source| UnusableUrl::Parse { path: path.clone(), source }),
        }
    }

    /// Host, port and virtual host; before the URL could be read, the file's path.
    pub fn place(&self) -> String {
        match (self.url(), self) {
            (Ok(url), _) => url.place(),
            (Err(_), Self::File(path)) => format!("as {} says", path.display()),
            (Err(_), Self::Url(url)) => url.place(),
        }
    }
}
