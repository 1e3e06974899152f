//! Detects changes of files such as keys, certificates and kubeconfigs, which are then read again.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How often files are checked for changes (a few `stat` calls).
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(2);

/// When files are checked for changes: now, and then all files of the process at the same instants. Each instant wakes the process,
/// which is most of what an idle one does.
pub fn file_checks() -> Interval {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let now = Instant::now();
    let first = *FIRST.get_or_init(|| now);
    let mut checks = interval_at(now - since_last(first, now), CHECK_EVERY);
    checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    checks
}

/// How long before this time all files were to be checked the last time. In tests the first check may be later: their clocks differ.
fn since_last(first: Instant, now: Instant) -> Duration {
    let (elapsed, ahead) = (now.saturating_duration_since(first), first.saturating_duration_since(now));
    let period = CHECK_EVERY.as_nanos();
    Duration::from_nanos_u128((elapsed.as_nanos() + period - ahead.as_nanos() % period) % period)
}

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

    #[tokio::test(start_paused = true)]
    async fn all_files_are_checked_at_the_same_instants() {
        let mut first = file_checks();
        first.tick().await;
        // Between two checks, whenever the first one of this process was.
        let between = first.tick().await + CHECK_EVERY / 3;
        tokio::time::sleep_until(between).await;
        let (begun, mut second) = (Instant::now(), file_checks());
        second.tick().await;
        assert_eq!(Instant::now(), begun, "the first check waited");
        assert_eq!(first.tick().await, second.tick().await);
        tokio::time::advance(CHECK_EVERY * 5 / 2).await;
        first.tick().await;
        second.tick().await;
        assert_eq!(first.tick().await, second.tick().await, "a late check does not move the next one");
    }

    #[test]
    fn checks_fall_on_multiples_of_the_period_before_and_after_the_first() {
        let first = Instant::now() + CHECK_EVERY * 10;
        let after = |part: u32| CHECK_EVERY * part / 4;
        for (now, expected) in [
            (first, Duration::ZERO),
            (first + after(3), after(3)),
            (first + after(5), after(1)),
            (first - after(1), after(3)),
            (first - after(8), Duration::ZERO),
        ] {
            assert_eq!(since_last(first, now), expected);
        }
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
