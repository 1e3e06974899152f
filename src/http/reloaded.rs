//! What is read from files, and read again when they change: certificates, tokens, keys.
//!
//! If the files can't be used (a typo, one of a pair is not replaced yet, one is missing), what was read last stays in force.
//! That is logged once, and the files are read every few seconds until they can be used.

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::SecretString;
use tokio::sync::watch;

use super::files::{FileWatch, Files, file_looks};

/// The largest file of text: more than 10,000 lines.
const LARGEST: u64 = 4 << 20;

/// Why a file of text can't be used. Its content is never repeated.
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

/// Files, and what of their content is in force.
pub struct Reloaded<T, E = FileError> {
    read: Arc<dyn Fn() -> Result<T, E> + Send + Sync>,
    /// The files' metadata from before they were read first.
    seen: Files,
    content: watch::Sender<Arc<T>>,
    fault: watch::Sender<Option<Arc<E>>>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads a file of text, and may block on the disk. If it can't be used, `until_then` is in force until it can.
    ///
    /// An error of `parse` must not repeat the text.
    pub fn of_text(
        path: PathBuf,
        parse: impl Fn(&SecretString) -> Result<T, String> + Send + Sync + 'static,
        until_then: T,
    ) -> Self {
        let read = {
            let path = path.clone();
            move || {
                let text = read_text(&path)?;
                parse(&text).map_err(|reason| FileError::Parse { path: path.clone(), reason })
            }
        };
        let seen = Files::of(vec![path]);
        let first = read();
        let file = Self::with(read, seen, until_then);
        file.take(first);
        file
    }
}

impl<T: Send + Sync + 'static, E: Error + Send + Sync + 'static> Reloaded<T, E> {
    /// Reads files, and may block on the disk. An error if they can't be used now.
    pub fn load(files: Vec<PathBuf>, read: impl Fn() -> Result<T, E> + Send + Sync + 'static) -> Result<Self, E> {
        let seen = Files::of(files);
        let first = read()?;
        Ok(Self::with(read, seen, first))
    }

    fn with(read: impl Fn() -> Result<T, E> + Send + Sync + 'static, seen: Files, content: T) -> Self {
        let (content, fault) = (watch::Sender::new(Arc::new(content)), watch::Sender::new(None));
        Self { read: Arc::new(read), seen, content, fault }
    }

    pub fn content(&self) -> watch::Receiver<Arc<T>> {
        self.content.subscribe()
    }

    /// Why the present files can't be used; none while their content is in force.
    pub fn fault(&self) -> watch::Receiver<Option<Arc<E>>> {
        self.fault.subscribe()
    }

    async fn read_when_changed(&self) -> Infallible {
        let mut watch = FileWatch::new(self.seen.clone());
        let mut again = file_looks();
        loop {
            let is_fault = self.fault.borrow().is_some();
            tokio::select! {
                () = watch.changed() => {}
                _ = again.tick(), if is_fault => {}
            }
            watch.see();
            let read = Arc::clone(&self.read);
            match tokio::task::spawn_blocking(move || read()).await {
                Ok(read) => self.take(read),
                Err(error) => tracing::error!(%error, files = %self.seen, "failed to read files"),
            }
        }
    }

    fn take(&self, read: Result<T, E>) {
        match read {
            Ok(content) => {
                tracing::info!(files = %self.seen, "files loaded");
                self.content.send_replace(Arc::new(content));
                self.fault.send_replace(None);
            }
            Err(error) => {
                if self.fault.borrow().is_none() {
                    let source = error.source();
                    tracing::error!(%error, source, "failed to load files, what was loaded before, if anything, stays in force");
                }
                self.fault.send_replace(Some(Arc::new(error)));
            }
        }
    }
}

/// Reads the files whenever they have changed. Never ends, also if there are none.
pub async fn keep_up_to_date<T, E>(files: Option<&Reloaded<T, E>>) -> Infallible
where
    T: Send + Sync + 'static,
    E: Error + Send + Sync + 'static,
{
    match files {
        Some(files) => files.read_when_changed().await,
        None => pending().await,
    }
}

fn read_text(path: &Path) -> Result<SecretString, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > LARGEST {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    std::fs::read_to_string(path).map(SecretString::from).map_err(failed)
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
        let file = Reloaded::of_text(path.clone(), number, 0);
        let (mut content, mut fault) = (file.content(), file.fault());
        let first = fault.borrow_and_update().clone().expect("a fault").to_string();
        assert!(first.ends_with("number: it is no number") && !first.contains("canary"), "{first}");
        assert_eq!(**content.borrow_and_update(), 0);
        let keeping = tokio::spawn(async move { keep_up_to_date(Some(&file)).await });
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
