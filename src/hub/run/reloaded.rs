//! Files with tokens or keys, which are read again when they change.
//!
//! A faulty file is reported, and the last good content stays in force.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::SecretString;
use tokio::sync::watch;

use crate::http::{FileWatch, Files, file_looks};

/// Largest file: more than 10,000 lines.
const LARGEST: u64 = 4 << 20;

/// Why a file can't be used. Its content is never repeated.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is far larger than it can be.
    #[error("{} has more than {LARGEST} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: {reason}", path.display())]
    Parse { path: PathBuf, reason: String },
}

/// A file and the content that is in force.
pub struct Reloaded<T> {
    path: PathBuf,
    parse: fn(&SecretString) -> Result<T, String>,
    /// The file's metadata from before it was read first.
    seen: Files,
    content: watch::Sender<Arc<T>>,
    fault: watch::Sender<Option<Arc<FileError>>>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads the file, and may block on the disk. If it can't be used, `until_then` is in force until it can.
    pub fn open(path: PathBuf, parse: fn(&SecretString) -> Result<T, String>, until_then: T) -> Self {
        let seen = Files::of(vec![path.clone()]);
        let read = read(&path, parse);
        let (content, fault) = (watch::Sender::new(Arc::new(until_then)), watch::Sender::new(None));
        let file = Self { path, parse, seen, content, fault };
        file.take(read);
        file
    }

    pub fn content(&self) -> watch::Receiver<Arc<T>> {
        self.content.subscribe()
    }

    /// Why the present file can't be used; none while its content is in force.
    pub fn fault(&self) -> watch::Receiver<Option<Arc<FileError>>> {
        self.fault.subscribe()
    }

    /// Reads the file whenever it has changed. Never ends.
    pub async fn keep_up_to_date(&self) -> Infallible {
        let mut watch = FileWatch::new(self.seen.clone());
        let mut again = file_looks();
        loop {
            let is_fault = self.fault.borrow().is_some();
            tokio::select! {
                () = watch.changed() => {}
                _ = again.tick(), if is_fault => {}
            }
            watch.see();
            let (path, parse) = (self.path.clone(), self.parse);
            match tokio::task::spawn_blocking(move || read(&path, parse)).await {
                Ok(read) => self.take(read),
                Err(error) => tracing::error!(%error, "failed to read a file"),
            }
        }
    }

    fn take(&self, read: Result<T, FileError>) {
        match read {
            Ok(content) => {
                tracing::info!(file = %self.path.display(), "file loaded");
                self.content.send_replace(Arc::new(content));
                self.fault.send_replace(None);
            }
            Err(error) => {
                if self.fault.borrow().is_none() {
                    let source = std::error::Error::source(&error);
                    tracing::error!(%error, source, "failed to load a file, what was loaded from it before, if anything, stays in force");
                }
                self.fault.send_replace(Some(Arc::new(error)));
            }
        }
    }
}

fn read<T>(path: &std::path::Path, parse: fn(&SecretString) -> Result<T, String>) -> Result<T, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > LARGEST {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let text = SecretString::from(std::fs::read_to_string(path).map_err(failed)?);
    parse(&text).map_err(|reason| FileError::Parse { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn number(text: &SecretString) -> Result<u32, String> {
        text.expose_secret().trim().parse().map_err(|_| "it is no number".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_faulty_file_leaves_the_last_good_content_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("number");
        std::fs::write(&path, "canary").expect("a file");
        let file = Reloaded::open(path.clone(), number, 0);
        let (mut content, mut fault) = (file.content(), file.fault());
        let first = fault.borrow_and_update().clone().expect("a fault").to_string();
        assert!(first.ends_with("number: it is no number") && !first.contains("canary"), "{first}");
        assert_eq!(**content.borrow_and_update(), 0);
        let keeping = tokio::spawn(async move { file.keep_up_to_date().await });
        std::fs::write(&path, "7").expect("a file");
        content.changed().await.expect("it is read again");
        assert_eq!(**content.borrow_and_update(), 7);
        fault.wait_for(Option::is_none).await.expect("it is read again");
        std::fs::write(&path, "none").expect("a file");
        fault.wait_for(Option::is_some).await.expect("it is read again");
        assert_eq!(**content.borrow(), 7);
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(&path, "8").expect("a file");
        content.changed().await.expect("it is read again");
        assert_eq!(**content.borrow(), 8);
        keeping.abort();
    }
}
