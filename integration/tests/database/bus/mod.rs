//! The bus over a real `RabbitMQ` broker (bus.md, *AMQP*): events, faults of the broker, and what is reported of them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that can't go on has failed"
)]

mod consumer;
mod costs;
mod events;
mod permissions;
mod python;
mod refused;
mod rounds;
mod switching;
mod work;
mod world;
