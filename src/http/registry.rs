//! The connections of a server: their number, and which one is closed to make room for a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// All connections of a server. A lock, since every connection's task moves its own entry, and a new connection evicts
/// another's; each access is a few map operations.
pub(super) struct Registry {
    most_connections: usize,
    most_arriving: usize,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    /// Open connections that have not been evicted.
    open: usize,
    /// The last number that was assigned. Numbers grow, so the first entry of a map is the oldest.
    last: u64,
    arriving: BTreeMap<u64, Arc<Notify>>,
    idle: BTreeMap<u64, Arc<Notify>>,
}

impl Connections {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn close_oldest_arriving(&mut self) -> bool {
        let oldest = self.arriving.pop_first();
        self.close(oldest)
    }

    fn close_oldest_idle(&mut self) -> bool {
        let oldest = self.idle.pop_first();
        self.close(oldest)
    }

    fn close(&mut self, found: Option<(u64, Arc<Notify>)>) -> bool {
        let Some((_, evicted)) = found else { return false };
        self.open -= 1;
        evicted.notify_one();
        true
    }
}

impl Registry {
    pub(super) fn new(most_connections: usize, most_arriving: usize) -> Arc<Self> {
        Arc::new(Self { most_connections, most_arriving, connections: Mutex::default() })
    }

    /// Admits a new connection. None if there is no room for it.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Entry> {
        let mut connections = self.connections.lock();
        while connections.arriving.len() >= self.most_arriving && connections.close_oldest_arriving() {}
        while connections.open >= self.most_connections {
            if !connections.close_oldest_idle() && !connections.close_oldest_arriving() {
                return None;
            }
        }
        connections.open += 1;
        let (number, evicted) = (connections.next(), Arc::new(Notify::new()));
        connections.arriving.insert(number, Arc::clone(&evicted));
        drop(connections);
        Some(Entry { registry: Arc::clone(self), evicted, standing: Standing::Arriving(number) })
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It waits for the rest of a head.
    Arriving(u64),
    /// It serves a request.
    Busy,
    /// It waits for a further request.
    Idle(u64),
    /// It has been told to end.
    Evicted,
}

/// A connection's entry, until it ends.
pub(super) struct Entry {
    registry: Arc<Registry>,
    evicted: Arc<Notify>,
    standing: Standing,
}

impl Entry {
    /// Notified when the connection has to end to make room for a new one.
    pub(super) fn evicted(&self) -> Arc<Notify> {
        Arc::clone(&self.evicted)
    }

    /// The first bytes of a head have arrived.
    pub(super) fn arrives(&mut self) {
        let mut connections = self.registry.connections.lock();
        let Some(standing) = left(self.standing, &mut connections) else { return self.standing = Standing::Evicted };
        self.standing = standing;
        while connections.arriving.len() >= self.registry.most_arriving && connections.close_oldest_arriving() {}
        let number = connections.next();
        connections.arriving.insert(number, Arc::clone(&self.evicted));
        self.standing = Standing::Arriving(number);
    }

    /// The head is complete.
    pub(super) fn works(&mut self) {
        let mut connections = self.registry.connections.lock();
        self.standing = left(self.standing, &mut connections).unwrap_or(Standing::Evicted);
    }

    /// The request was answered.
    pub(super) fn idles(&mut self) {
        let mut connections = self.registry.connections.lock();
        let Some(_) = left(self.standing, &mut connections) else { return self.standing = Standing::Evicted };
        let number = connections.next();
        connections.idle.insert(number, Arc::clone(&self.evicted));
        self.standing = Standing::Idle(number);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut connections = self.registry.connections.lock();
        if left(self.standing, &mut connections).is_some() {
            connections.open -= 1;
        }
    }
}

/// Removes a connection from its current state; none if it was evicted.
fn left(standing: Standing, connections: &mut Connections) -> Option<Standing> {
    let was_there = match standing {
        Standing::Arriving(number) => connections.arriving.remove(&number).is_some(),
        Standing::Idle(number) => connections.idle.remove(&number).is_some(),
        Standing::Busy => true,
        Standing::Evicted => false,
    };
    was_there.then_some(Standing::Busy)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_evicted(entry: &Entry) -> bool {
        entry.evicted().notified().now_or_never().is_some()
    }

    fn open(registry: &Registry) -> usize {
        registry.connections.lock().open
    }

    #[test]
    fn beyond_the_bound_the_oldest_that_arrives_is_closed() {
        let registry = Registry::new(10, 2);
        let entries: Vec<Entry> = (0..4).map(|_| registry.admit().unwrap()).collect();
        assert_eq!(entries.iter().map(is_evicted).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!(open(&registry), 2);
        drop(entries);
        assert_eq!(open(&registry), 0);
    }

    #[test]
    fn an_idle_connection_is_closed_for_a_newer_one_before_any_that_arrives_and_none_that_works() {
        let registry = Registry::new(4, 4);
        let mut entries: Vec<Entry> = (0..4).map(|_| registry.admit().unwrap()).collect();
        entries[0].works();
        entries[2].works();
        entries[2].idles();
        entries[3].works();
        entries[3].idles();
        let fifth = registry.admit().unwrap();
        assert_eq!(entries.iter().map(is_evicted).collect::<Vec<_>>(), [false, false, true, false]);
        let sixth = registry.admit().unwrap();
        assert_eq!(entries.iter().map(is_evicted).collect::<Vec<_>>(), [false, false, false, true]);
        let mut seventh = registry.admit().unwrap();
        assert!(is_evicted(&entries[1]) && !is_evicted(&entries[0]) && !is_evicted(&fifth));
        seventh.works();
        assert_eq!(open(&registry), 4);
        drop((entries, fifth, sixth, seventh));
        assert_eq!(open(&registry), 0);
    }

    #[test]
    fn a_new_connection_is_refused_while_all_others_are_busy() {
        let registry = Registry::new(2, 2);
        let mut entries: Vec<Entry> = (0..2).map(|_| registry.admit().unwrap()).collect();
        entries.iter_mut().for_each(Entry::works);
        assert!(registry.admit().is_none());
        entries.pop();
        assert!(registry.admit().is_some());
    }

    #[test]
    fn a_kept_connection_arrives_again_within_the_bound() {
        let registry = Registry::new(10, 1);
        let mut kept = registry.admit().unwrap();
        kept.works();
        kept.idles();
        let other = registry.admit().unwrap();
        kept.arrives();
        assert!(is_evicted(&other) && !is_evicted(&kept));
        assert_eq!(open(&registry), 1);
    }

    #[test]
    fn an_evicted_connection_takes_no_room_again() {
        let registry = Registry::new(10, 1);
        let mut first = registry.admit().unwrap();
        let _second = registry.admit().unwrap();
        first.works();
        first.idles();
        first.arrives();
        assert_eq!((open(&registry), first.standing), (1, Standing::Evicted));
        drop(first);
        assert_eq!(open(&registry), 1);
    }
}
