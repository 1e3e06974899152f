//! Detects changes of files such as keys, certificates and kubeconfigs, which are then read again.

use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// From one look at the files to the next one. Tests don't wait that long.
pub(super) const EVERY: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(4) };

/// Files and their metadata: a cheap test for changes that follows symbolic links, so that the atomic swap of a mounted
/// Secret is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files(Vec<(PathBuf, Option<Stamp>)>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// When the content was changed, and when anything was: seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Files {
    pub fn of(paths: Vec<PathBuf>) -> Self {
        Self(paths.into_iter().map(|path| (path.clone(), stamp(&path))).collect())
    }

    /// Adds files with their current metadata; the recorded metadata of the others stays.
    #[must_use]
    pub fn and(mut self, paths: Vec<PathBuf>) -> Self {
        self.0.extend(Self::of(paths).0);
        self
    }

    /// The same files with their current metadata.
    #[must_use]
    pub fn seen_now(&self) -> Self {
        Self::of(self.0.iter().map(|(path, _)| path.clone()).collect())
    }

    fn changed(&self) -> bool {
        self.0.iter().any(|(path, seen)| stamp(path) != *seen)
    }
}

impl fmt::Display for Files {
    /// The paths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<_> = self.0.iter().map(|(path, _)| path.display().to_string()).collect();
        f.write_str(&paths.join(", "))
    }
}

#[derive(Debug)]
pub struct FileWatch {
    files: Files,
    looks: Option<Interval>,
}

impl FileWatch {
    /// Watches for metadata that differ from these.
    pub fn new(files: Files) -> Self {
        Self { files, looks: None }
    }

    /// Waits until the metadata of any file differ. It can be cancelled and called again.
    pub async fn changed(&mut self) {
        if self.files.0.is_empty() {
            pending::<()>().await;
        }
        let looks = self.looks.get_or_insert_with(file_looks);
        loop {
            looks.tick().await;
            let files = self.files.clone();
            // A file system that hangs blocks a thread of its own. A look that panics has seen nothing.
            if tokio::task::spawn_blocking(move || files.changed()).await.unwrap_or(false) {
                // The next call does not wait: they still differ.
                looks.reset_immediately();
                return;
            }
        }
    }

    /// Watches for metadata that differ from the current ones.
    pub fn see(&mut self) {
        self.files = self.files.seen_now();
    }
}

/// Now, and then as often as files are looked at.
pub(super) fn file_looks() -> Interval {
    let mut looks = interval(EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some(Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        length: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn changed(watch: &mut FileWatch) {
        tokio::time::timeout(Duration::from_mins(1), watch.changed()).await.expect("it is noticed");
    }

    /// The clock is paused: the watch looks ten times.
    async fn is_pending(watch: &mut FileWatch) -> bool {
        tokio::time::timeout(EVERY * 10, watch.changed()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_notices_changes_of_its_own_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut mine = FileWatch::new(Files::of(vec![path("mine")]));
        let mut both = FileWatch::new(Files::of(vec![path("mine"), path("theirs")]));
        let mut none = FileWatch::new(Files::of(Vec::new()));
        assert!(is_pending(&mut mine).await && is_pending(&mut both).await && is_pending(&mut none).await);
        std::fs::write(path("theirs"), "").unwrap();
        changed(&mut both).await;
        assert!(is_pending(&mut mine).await);
        std::fs::write(path("mine"), "").unwrap();
        changed(&mut mine).await;
        // They still differ from what was seen.
        changed(&mut mine).await;
        changed(&mut both).await;
        mine.see();
        both.see();
        assert!(is_pending(&mut mine).await && is_pending(&mut both).await && is_pending(&mut none).await);
    }

    #[test]
    fn an_atomic_swap_of_a_symbolic_link_is_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("one")).unwrap();
        std::fs::create_dir(path("two")).unwrap();
        std::fs::write(path("one/kubeconfig"), "same").unwrap();
        std::fs::write(path("two/kubeconfig"), "same").unwrap();
        std::os::unix::fs::symlink("one", path("..data")).unwrap();
        std::os::unix::fs::symlink("..data/kubeconfig", path("kubeconfig")).unwrap();
        let files = Files::of(vec![path("kubeconfig")]);
        assert!(!files.changed());
        std::os::unix::fs::symlink("two", path("next")).unwrap();
        std::fs::rename(path("next"), path("..data")).unwrap();
        assert!(files.changed());
    }

    #[test]
    fn further_files_do_not_renew_how_the_first_ones_looked() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        let files = Files::of(vec![first.clone()]);
        std::fs::write(first, "new").unwrap();
        assert!(files.and(vec![second]).changed());
    }
}
