//! How the binary is linked.

use std::env;
use std::process::Command;

/// From this version on the C library takes packed relocations.
const TAKES_PACKED: (u32, u32) = (2, 36);

/// Packed relocations are half a megabyte less of the file to read at the start, and 0.3 MiB less in a side-car's memory.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("HOST") == env::var("TARGET") && c_library().is_some_and(|version| version >= TAKES_PACKED) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's glibc, where it has one.
fn c_library() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
