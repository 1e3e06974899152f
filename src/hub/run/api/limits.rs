//! The limits of the API's server, and how many slots there are for requests, for their bodies and for watches.
//!
//! A caller takes a slot once its token is known. A request without a slot gets 429; only what reads many documents waits for one.

use std::time::Duration;

use crate::documents::CallerSlots;
use crate::http::Limits;

/// Most requests that are carried out, watches aside. At 8 connections of the database's pool, the default, more would only wait there.
const MOST_REQUESTS: usize = 256;
/// Most bodies that arrive. Each takes up to 64 KiB of memory, until it has a slot for large ones.
const MOST_BODIES: usize = 256;
/// Of requests and of bodies, one in so many is left to administrators.
const RESERVED: usize = 8;
/// Connections beside two for each watch that may be served: so a watch too many gets its 429, and other clients have room beside all
/// watches.
const MORE_CONNECTIONS: usize = 1024;
/// Deadline for a request's head. Idle connections are closed after it, too: it is longer than the minute for which load balancers commonly keep theirs.
const LONGEST_HEAD: Duration = Duration::from_secs(75);
/// Most bytes of a request's head: a `continue` of 1,024 characters, a selector of 4 KiB whose characters are escaped.
const LARGEST_HEAD: usize = 16 * 1024;
/// The longest time in which a client takes nothing of its answer or its watch.
const LONGEST_STALL: Duration = Duration::from_secs(30);
/// Longest wait for a slot among those that read many documents: as long as for a connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Deadline for requests under way when the server stops.
const FAREWELL: Duration = Duration::from_secs(10);

pub(in crate::hub) fn for_requests() -> CallerSlots {
    CallerSlots::new("requests", MOST_REQUESTS, MOST_REQUESTS / RESERVED)
}

pub(in crate::hub) fn for_bodies() -> CallerSlots {
    CallerSlots::new("requests whose bodies arrive", MOST_BODIES, MOST_BODIES / RESERVED)
}

pub(in crate::hub) fn for_watches(most: usize) -> CallerSlots {
    CallerSlots::new("watches", most, most / RESERVED)
}

/// Slots for requests that read many documents, which may take long: half of the pool's connections. Watches read with as many at
/// most. Administrators have one of their own.
pub(in crate::hub) fn for_reads(connections: u32) -> CallerSlots {
    let most = usize::try_from(connections / 2).unwrap_or(usize::MAX).max(1);
    CallerSlots::new("requests that read many documents", most, usize::from(most > 1))
}

/// The limits with this number of watches.
pub(super) fn limits(max_watchers: usize) -> Limits {
    Limits {
        most_connections: 2 * max_watchers + MORE_CONNECTIONS,
        longest_head: LONGEST_HEAD,
        largest_head: LARGEST_HEAD,
        longest_stall: LONGEST_STALL,
        keep_alive: true,
        farewell: FAREWELL,
    }
}
