//! Detects changes of files such as keys, certificates and kubeconfigs, which are then read again.
//!
//! One thread polls the metadata of all files ([`FileWatch`]). It is no task of the runtime: a process at rest does little else, and a turn
//! of the runtime touches several times as many pages of memory. A file system that hangs stops the thread, and so the watches of all files.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::beat;

/// From one look at the files to the next one. Tests don't wait that long.
const EVERY: Duration = if cfg!(test) { Duration::from_millis(20) } else { beat::EVERY };
/// The thread needs little more than the path of a file.
const STACK: usize = 128 << 10;

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

    fn changed(&self) -> bool {
        self.0.iter().any(|(path, seen)| stamp(path) != *seen)
    }
}

/// Waits for changes of files.
#[derive(Debug)]
pub struct FileWatch {
    files: Files,
    /// Receives something once they have changed, also while nobody polls it.
    changed: Option<oneshot::Receiver<()>>,
}

impl FileWatch {
    /// Watches for metadata that differ from these.
    pub fn new(files: Files) -> Self {
        Self { files, changed: None }
    }

    /// Waits until the metadata of any file differ. It can be cancelled without losing a change that has been noticed.
    pub async fn changed(&mut self) {
        if self.files.0.is_empty() {
            pending::<()>().await;
        }
        let changed = self.changed.get_or_insert_with(|| POLLER.register(self.files.clone()));
        // The poller never ends, so nothing is dropped unsent.
        let _ = changed.await;
        self.changed = None;
    }

    /// Watches for metadata that differ from the current ones.
    pub fn see(&mut self) {
        *self = Self::new(self.files.seen_now());
    }
}

/// Starts the thread that polls files. It ends with the process.
pub fn begin_polling() -> std::io::Result<()> {
    POLLER.start()
}

static POLLER: Poller =
    Poller { registered: Mutex::new(Vec::new()), added: Condvar::new(), is_running: AtomicBool::new(false) };

/// The thread that polls all files, and what is registered with it.
struct Poller {
    registered: Mutex<Vec<Registration>>,
    /// There is a registration, and was none before.
    added: Condvar,
    is_running: AtomicBool,
}

/// Polled until the files have changed or the receiver is dropped.
struct Registration {
    files: Files,
    changed: oneshot::Sender<()>,
}

impl Poller {
    /// Starts the thread if it does not run.
    fn start(&'static self) -> std::io::Result<()> {
        if self.is_running.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK);
        let started = thread.spawn(|| self.run());
        self.is_running.store(started.is_ok(), Ordering::Relaxed);
        started.map(|_| ())
    }

    fn register(&'static self, files: Files) -> oneshot::Receiver<()> {
        // The daemon has started it, and failed if it could not.
        if let Err(error) = self.start() {
            tracing::error!(%error, "failed to start the thread that polls files, their changes are not noticed");
        }
        let (changed, receiver) = oneshot::channel();
        let mut registered = self.registered.lock();
        if registered.is_empty() {
            self.added.notify_one();
        }
        registered.retain(|registration| !registration.changed.is_closed());
        registered.push(Registration { files, changed });
        receiver
    }

    fn run(&self) {
        loop {
            self.wait();
            // Registering does not wait for a slow file system.
            let mut polled = std::mem::take(&mut *self.registered.lock());
            polled.retain(|registration| !registration.changed.is_closed());
            for registration in polled.extract_if(.., |registration| registration.files.changed()) {
                // The receiver may be dropped meanwhile.
                let _ = registration.changed.send(());
            }
            let mut registered = self.registered.lock();
            polled.append(&mut registered);
            *registered = polled;
        }
    }

    /// Waits until something is registered, and then for the next instant.
    fn wait(&self) {
        let mut registered = self.registered.lock();
        while registered.is_empty() {
            self.added.wait(&mut registered);
        }
        let due = beat::next(Instant::now(), EVERY);
        while Instant::now() < due {
            self.added.wait_until(&mut registered, due);
        }
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
    use futures::poll;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    async fn changed(watch: &mut FileWatch) {
        tokio::time::timeout(PATIENCE, watch.changed()).await.expect("it is noticed");
    }

    async fn is_pending(watch: &mut FileWatch) -> bool {
        poll!(std::pin::pin!(watch.changed())).is_pending()
    }

    /// Waits until everything has been polled that was registered before.
    async fn polled() {
        let directory = tempfile::tempdir().unwrap();
        let mut appears = FileWatch::new(Files::of(vec![directory.path().join("new")]));
        assert!(is_pending(&mut appears).await);
        std::fs::write(directory.path().join("new"), "").unwrap();
        changed(&mut appears).await;
    }

    #[tokio::test]
    async fn a_watch_notices_changes_of_its_own_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut mine = FileWatch::new(Files::of(vec![path("mine")]));
        let mut both = FileWatch::new(Files::of(vec![path("mine"), path("theirs")]));
        let mut none = FileWatch::new(Files::of(Vec::new()));
        for _ in 0..2 {
            assert!(is_pending(&mut mine).await && is_pending(&mut both).await && is_pending(&mut none).await);
            polled().await;
        }
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
        for _ in 0..2 {
            assert!(is_pending(&mut mine).await && is_pending(&mut both).await && is_pending(&mut none).await);
            polled().await;
        }
    }

    #[tokio::test]
    async fn a_change_that_is_noticed_while_nobody_waits_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut watch = FileWatch::new(Files::of(vec![path.clone()]));
        assert!(is_pending(&mut watch).await);
        std::fs::write(&path, "").unwrap();
        polled().await;
        polled().await;
        // The watch reports the change at once, even though somebody has undone it meanwhile.
        std::fs::remove_file(&path).unwrap();
        assert!(!is_pending(&mut watch).await);
    }

    #[tokio::test]
    async fn a_watch_has_one_registration_and_none_when_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::of(vec![directory.path().join("never")]);
        let registrations =
            || POLLER.registered.lock().iter().filter(|registration| registration.files == files).count();
        let mut watch = FileWatch::new(files.clone());
        for _ in 0..1000 {
            assert!(is_pending(&mut watch).await);
            // None while it is polled.
            assert!(registrations() <= 1, "{}", registrations());
        }
        // The thread forgets it, without another registration.
        let mut stays = FileWatch::new(Files::of(vec![directory.path().join("never, either")]));
        assert!(is_pending(&mut stays).await);
        drop(watch);
        let deadline = Instant::now() + PATIENCE;
        let mut seen_none = 0;
        while seen_none < 10 {
            assert!(Instant::now() < deadline, "{} are left", registrations());
            // A list that is being polled looks empty, and soon no longer.
            seen_none = if registrations() == 0 { seen_none + 1 } else { 0 };
            tokio::time::sleep(EVERY).await;
        }
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
