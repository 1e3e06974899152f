//! Detects changes of files such as keys, certificates and kubeconfigs, which are then read again.

use std::path::{Path, PathBuf};

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
    /// Records the files' current metadata.
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

    /// Whether the metadata of any file differs now.
    pub fn changed(&self) -> bool {
        self.0.iter().any(|(path, seen)| stamp(path) != *seen)
    }
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
