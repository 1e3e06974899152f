//! Loopback ports that stay ours while a server is down.
//!
//! A port that is merely found free is anybody's the moment a server stops, and tests stop servers all the time. These
//! lie below the range from which the kernel takes the ports of outgoing connections, and each is held by a file lock,
//! which ends with the process however it ends.

use std::fs::{self, File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::Error;
use crate::room::fixtures_directory;

/// The first port that is ever taken.
const FIRST: u16 = 12_000;
/// How many there are. The last is below 32768, where Linux begins to take ports of outgoing connections.
const COUNT: u16 = 20_000;

static OFFSET: AtomicU16 = AtomicU16::new(0);

/// A port on 127.0.0.1 that no other fixture of this checkout takes while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Holds the lock.
    _lock: File,
}

impl Port {
    pub fn take() -> Result<Self, Error> {
        let locks = fixtures_directory().join("ports");
        fs::create_dir_all(&locks).map_err(Error::file("create", &locks))?;
        // Processes start at different places, so that two checkouts hardly ever meet.
        let start = u16::try_from(process::id().wrapping_mul(37) % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let offset = OFFSET.fetch_add(1, Ordering::Relaxed);
            let number = FIRST + (start + offset % COUNT) % COUNT;
            let path = locks.join(number.to_string());
            let lock = File::create(&path).map_err(Error::file("create", &path))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(source)) => return Err(Error::File { action: "lock", path, source }),
            }
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        let source = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        Err(Error::Network { action: "find a free loopback port", source })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}
