//! Templates of syncsets, against Go's own `text/template`, and YAML, against the decoder of kubectl.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests: what they assert is what the test says")]

mod compared;
mod drawn;
mod go;
mod yaml;
