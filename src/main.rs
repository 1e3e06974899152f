//! The `towline` binary.
fn main() {}
