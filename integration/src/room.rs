//! Where fixtures keep their files: one directory each below `target/fixtures`, removed with the fixture.
//!
//! The directory of a fixture that is dropped by a failing test stays, so that its logs can be read. What is left of
//! test processes that are gone is removed by the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

static NEXT: AtomicU32 = AtomicU32::new(1);
static SWEEP: Once = Once::new();

#[derive(Debug)]
pub(crate) struct Room {
    path: PathBuf,
}

impl Room {
    /// A new, empty directory. Its name has the process's id, the fixture's name and a number.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let rooms = fixtures_directory();
        fs::create_dir_all(&rooms).map_err(Error::file("create", &rooms))?;
        SWEEP.call_once(|| sweep(&rooms));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = rooms.join(format!("{}-{name}-{number}", process::id()));
        fs::create_dir(&path).map_err(Error::file("create", &path))?;
        Ok(Self { path })
    }

    /// The same at a path that is short enough for a socket's and that every user reaches, which `target` may not be.
    pub(crate) fn brief(name: &str) -> Result<Self, Error> {
        let rooms = std::env::temp_dir().join("towline-fixtures");
        fs::create_dir_all(&rooms).map_err(Error::file("create", &rooms))?;
        sweep(&rooms);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = rooms.join(format!("{}-{name}-{number}", process::id()));
        fs::create_dir(&path).map_err(Error::file("create", &path))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file that only this user may read, and gives its path.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.join(name);
        write_private(&path, content).map_err(Error::file("write", &path))?;
        Ok(path)
    }

    /// The same where there is no such file yet, and whole from its first moment.
    pub(crate) fn write_once(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.join(name);
        if !path.exists() {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let whole = self.write(&format!("{name}.{number}"), content)?;
            fs::rename(&whole, &path).map_err(Error::file("write", &path))?;
        }
        Ok(path)
    }
}

fn write_private(path: &Path, content: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}

impl Drop for Room {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the files of this fixture are kept: {}", self.path.display());
        } else {
            // What can't be removed now is removed by the next sweep.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), |path| repository().join(path))
}

pub(crate) fn fixtures_directory() -> PathBuf {
    target_directory().join("fixtures")
}

/// Removes the directories whose process is gone. Best effort: whatever stays harms nobody.
fn sweep(rooms: &Path) {
    let Ok(entries) = fs::read_dir(rooms) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split_once('-')).and_then(|(pid, _)| pid.parse::<u32>().ok());
        if let Some(pid) = owner
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}
