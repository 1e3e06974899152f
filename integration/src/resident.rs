//! Keeps the memory of a process in use, from outside.
//!
//! The host of a virtual machine may take pages that nobody has touched for a while, and give each back when it is touched. The machine
//! books that as CPU time of whoever touches the page: of an idle process it may be nearly all. What is read all the time stays. What the
//! kernel itself has in memory for the process is not read.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::Error;

/// A page is in memory: bit 63 of its entry, pagemap(5).
const PRESENT: u64 = 1 << 63;
/// Entries that are read at once.
const ENTRIES: u64 = 4096;

/// The pages of a process that are in memory.
#[derive(Debug)]
pub struct Resident {
    directory: PathBuf,
    memory: File,
    page: u64,
    addresses: Vec<u64>,
}

impl Resident {
    /// Of a process that this one may trace. None of them is known yet.
    pub(crate) fn of(pid: i32) -> Result<Self, Error> {
        let directory = PathBuf::from("/proc").join(pid.to_string());
        let path = directory.join("mem");
        let memory = File::open(&path).map_err(Error::file("open", &path))?;
        let page = rustix::param::page_size() as u64;
        Ok(Self { directory, memory, page, addresses: Vec::new() })
    }

    /// Finds out which pages are in memory.
    pub fn look(&mut self) -> Result<(), Error> {
        let (maps, entries) = (self.directory.join("maps"), self.directory.join("pagemap"));
        let text = fs::read_to_string(&maps).map_err(Error::file("read", &maps))?;
        let entries_of = File::open(&entries).map_err(Error::file("open", &entries))?;
        self.addresses.clear();
        for (start, end) in text.lines().filter_map(range) {
            let found = self.present(&entries_of, start / self.page, end / self.page);
            found.map_err(Error::file("read", &entries))?;
        }
        Ok(())
    }

    /// Those from one page to before another.
    fn present(&mut self, entries: &File, first: u64, end: u64) -> io::Result<()> {
        let mut next = first;
        while next < end {
            let count = (end - next).min(ENTRIES);
            let mut read = vec![0; usize::try_from(count * 8).unwrap_or_default()];
            let length = entries.read_at(&mut read, next * 8)?;
            read.truncate(length);
            if read.len() < 8 {
                // Addresses of the kernel's have no entries.
                return Ok(());
            }
            for entry in read.chunks_exact(8) {
                if entry.try_into().is_ok_and(|entry| u64::from_ne_bytes(entry) & PRESENT != 0) {
                    self.addresses.push(next * self.page);
                }
                next += 1;
            }
        }
        Ok(())
    }

    /// Reads a byte of each page that was found. Returns which share could be read: a few of the kernel's can't.
    pub fn touch(&self) -> f64 {
        let readable = |address: &&u64| self.memory.read_at(&mut [0], **address).is_ok_and(|length| length == 1);
        let (read, all) = (self.addresses.iter().filter(readable).count(), self.addresses.len());
        let float = |count| u32::try_from(count).map_or(f64::INFINITY, f64::from);
        if all == 0 { 0.0 } else { float(read) / float(all) }
    }
}

/// The addresses of a line of `maps`.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many that the allocator asks the kernel for them.
    const PAGES: usize = 10_000;
    /// The kernel may give a huge page at each end.
    const INACCURATE: usize = 1024;

    #[test]
    fn pages_that_were_touched_are_in_memory_and_others_are_not() {
        let page = rustix::param::page_size();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let touched = vec![1_u8; PAGES * page];
        let untouched = vec![0_u8; PAGES * page];
        let mut resident = Resident::of(own).unwrap();
        assert!(resident.touch() < 0.5, "none is known");
        resident.look().unwrap();
        let within = |memory: &[u8]| {
            let start = memory.as_ptr().expose_provenance() as u64;
            let end = start + memory.len() as u64;
            resident.addresses.iter().filter(|address| (start..end).contains(address)).count()
        };
        assert!(within(&touched) >= PAGES - 1);
        assert!(within(&untouched) <= INACCURATE);
        assert!(resident.touch() > 0.9);
    }

    #[test]
    fn lines_of_maps_have_their_range_in_front() {
        let line = "7f0000400000-7f0000401000 r-xp 00000000 fe:00 12 /usr/bin/a file";
        assert_eq!(range(line), Some((0x7f00_0040_0000, 0x7f00_0040_1000)));
        assert_eq!(range(""), None);
    }
}
