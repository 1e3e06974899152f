//! Minutes of rest, and what the host of a virtual machine adds to them (`integration::Resident`).

use std::thread::sleep;
use std::time::{Duration, Instant};

use integration::{Error, Resident};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

/// How long pages of this program lie untouched, and how many they are.
const UNTOUCHED: Duration = Duration::from_secs(5);
const PAGES: usize = 250;
const PAGE: usize = 4096;
/// Between two touches of the pages that are kept. Little was seen to be taken in this time.
const EVERY: Duration = Duration::from_millis(20);
/// The share of them that has to be readable.
const MOST: f64 = 0.9;

/// Rests for this long, at least once [`UNTOUCHED`]. Returns the CPU time of the first touch of a page of this program after that.
pub(crate) async fn and_touch(rest: Duration) -> Result<Duration, Error> {
    blocking(move || {
        let mut memory = vec![1_u8; PAGES * PAGE];
        let (mut spent, mut touched) = (Duration::ZERO, 0);
        let end = Instant::now() + rest;
        loop {
            pause(UNTOUCHED);
            let begun = clock()?;
            for byte in memory.iter_mut().step_by(PAGE) {
                *byte = std::hint::black_box(*byte).wrapping_add(1);
            }
            spent += clock()?.saturating_sub(begun);
            touched += 1;
            if Instant::now() + UNTOUCHED > end {
                pause(end.saturating_duration_since(Instant::now()));
                return Ok(spent / touched / u32::try_from(PAGES).unwrap_or(u32::MAX));
            }
        }
    })
    .await
}

/// Rests for this long while the pages of a process stay in use.
pub(crate) async fn and_keep(rest: Duration, mut resident: Resident) -> Result<(), Error> {
    blocking(move || {
        let end = Instant::now() + rest;
        let mut look_at = Instant::now();
        while Instant::now() < end {
            if look_at <= Instant::now() {
                resident.look()?;
                look_at = Instant::now() + UNTOUCHED;
            }
            let read = resident.touch();
            if read < MOST {
                return Err(unreadable("the pages of a process", &format!("{:.0} % could be read", read * 100.0)));
            }
            pause(EVERY);
        }
        Ok(())
    })
    .await
}

fn clock() -> Result<Duration, Error> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map(Duration::from)
        .map_err(|error: Errno| unreadable("the clock of a thread", error.desc()))
}

#[expect(clippy::disallowed_methods, reason = "the thread is for nothing else")]
fn pause(time: Duration) {
    sleep(time);
}

/// On a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| unreadable("what a thread found", &error.to_string()))?
}

fn unreadable(what: &str, detail: &str) -> Error {
    Error::Unreadable { what: what.to_owned(), detail: detail.to_owned() }
}
