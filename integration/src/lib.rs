//! Real components for tests, demo and bench.
