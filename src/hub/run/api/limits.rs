//! The limits of the API's server, and the places for requests, for their bodies and for watches.
//!
//! A caller takes a [`Place`] once its token is known. No token gets more than half of the places, so that none keeps the others out, and some
//! are left to administrators of everything, so that operators get through whatever the others do. Nobody waits for a place: a
//! request without one gets 429.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::documents::{Problem, ProblemKind};
use crate::http::Limits;
use crate::hub::plan::access::Caller;
use crate::hub::plan::tokens::{ActionScope, Role, TokenDigest};

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
/// Deadline for requests under way when the server stops.
const FAREWELL: Duration = Duration::from_secs(10);

/// Places for one thing. A lock, since whoever has a place gives it back by itself; it is held for one look into the table.
pub struct Places {
    /// What they are for, in the plural.
    what: &'static str,
    most: usize,
    reserved: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    of_token: HashMap<TokenDigest, usize>,
}

/// A place, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    token: Option<TokenDigest>,
}

impl Places {
    pub(in crate::hub) fn for_requests() -> Self {
        Self::new("requests", MOST_REQUESTS, MOST_REQUESTS / RESERVED)
    }

    pub(in crate::hub) fn for_bodies() -> Self {
        Self::new("requests whose bodies arrive", MOST_BODIES, MOST_BODIES / RESERVED)
    }

    pub(in crate::hub) fn for_watches(most: usize) -> Self {
        Self::new("watches", most, 0)
    }

    fn new(what: &'static str, most: usize, reserved: usize) -> Self {
        Self { what, most, reserved, taken: Mutex::default() }
    }

    /// How many are taken.
    pub(in crate::hub) fn count(&self) -> usize {
        self.taken.lock().all
    }

    /// A place, unless too many are taken, by all or by this token.
    pub(super) fn take(self: &Arc<Self>, caller: &Caller) -> Result<Place, Problem> {
        let busy = |title: String| Err(Problem::new(ProblemKind::Busy, title));
        let reserved = if caller.may(Role::Admin, ActionScope::Everywhere) { 0 } else { self.reserved };
        let (mut taken, digest) = (self.taken.lock(), caller.digest());
        if taken.all >= self.most - reserved {
            return busy(format!("this replica serves {} {} already", taken.all, self.what));
        }
        if let Some(digest) = digest {
            let most = (self.most / 2).max(1);
            let of_token = taken.of_token.entry(digest).or_default();
            if *of_token >= most {
                return busy(format!("the token has {most} {} already", self.what));
            }
            *of_token += 1;
        }
        taken.all += 1;
        Ok(Place { places: Arc::clone(self), token: digest })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        if let Some(token) = self.token
            && let Some(of_token) = taken.of_token.get_mut(&token)
        {
            *of_token = of_token.saturating_sub(1);
            if *of_token == 0 {
                taken.of_token.remove(&token);
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_at_most_half_of_all_places_until_it_gives_them_back() {
        let places = Arc::new(Places::for_watches(4));
        let take = |token: u8| places.take(&Caller::Bearer { digest: [token; 32], grants: Arc::default() });
        let (first, second) = (take(1).ok(), take(1).ok());
        assert!(first.is_some() && second.is_some());
        assert_eq!(take(1).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
        drop(first);
        let others = [take(1).ok(), take(2).ok(), places.take(&Caller::Local).ok()];
        assert!(others.iter().all(Option::is_some));
        assert!(take(3).is_err(), "four are all");
        assert_eq!(places.count(), 4);
        drop((second, others));
        assert_eq!(places.count(), 0);
        assert!(places.taken.lock().of_token.is_empty(), "nothing is remembered of a token without places");
    }
}
