//! Watches on a ring that a test fills itself. Nothing reaches a database.

use futures::FutureExt;
use tokio::time::advance;

use super::*;
use crate::db::{Database, DatabaseSource};
use crate::documents::Kind;
use crate::documents::tail::entry::tests::change;

fn tail() -> Tail {
    let url = "postgres://nobody@127.0.0.1:1/nothing".parse().expect("a URL");
    Tail::with_ring(Database::new(DatabaseSource::Url(Box::new(url))), 32 << 20)
}

/// A tail that has read the log up to version 10.
fn ready() -> Tail {
    let tail = tail();
    {
        let mut ring = tail.0.ring.write();
        ring.restart(10);
        ring.follow("origin", 5);
    }
    reads_to(&tail, 10);
    tail
}

/// A read that begins now reaches the end of the log at this version.
fn reads_to(tail: &Tail, newest: i64) {
    tail.0.ring.write().reach_end(newest, Instant::now());
    tail.0.progress.send_modify(|progress| progress.complete += 1);
}

/// A read finds a new document.
fn reads(tail: &Tail, version: i64) {
    tail.0.ring.write().push(change(version, "c1", [None, Some(&[])]));
    tail.0.progress.send_modify(|_| {});
}

fn query(from: i64) -> WatchQuery {
    WatchQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, from: Some(from) }
}

/// The next event, if there is one now.
fn next(watch: &mut Watch) -> Option<Event> {
    watch.next().now_or_never().map(|event| event.expect("the watch goes on"))
}

fn bookmark(version: i64) -> Event {
    Event::Bookmark { version, is_end_of_state: false }
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_follows_the_first_read_to_the_end_that_begins_8_s_after_the_last_one() {
    let tail = ready();
    let mut watch = tail.watch(query(10)).await.expect("a watch");
    for _ in 0..7 {
        advance(Duration::from_secs(1)).await;
        reads_to(&tail, 10);
        assert_eq!(next(&mut watch), None);
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(next(&mut watch), None, "the last read was before that");
    reads_to(&tail, 12);
    assert_eq!(next(&mut watch), Some(bookmark(12)));
    assert_eq!(next(&mut watch), None, "there is one bookmark");
    advance(BOOKMARK_AFTER).await;
    reads_to(&tail, 12);
    assert_eq!(next(&mut watch), Some(bookmark(12)));
}

/// Reads begin at least once a second, and nothing changes.
#[tokio::test(start_paused = true)]
async fn at_most_10_s_are_between_two_bookmarks() {
    let tail = ready();
    let mut watch = tail.watch(query(10)).await.expect("a watch");
    let (mut last, mut bookmarks) = (Instant::now(), 0);
    for _ in 0..100 {
        // A second and what a read takes.
        advance(Duration::from_millis(1300)).await;
        reads_to(&tail, 10);
        if let Some(event) = next(&mut watch) {
            assert_eq!(event, bookmark(10));
            assert!(last.elapsed() <= Duration::from_secs(10), "{:?}", last.elapsed());
            (last, bookmarks) = (Instant::now(), bookmarks + 1);
        }
    }
    assert_eq!(bookmarks, 14, "one each 9.1 s");
}

#[tokio::test(start_paused = true)]
async fn no_bookmark_comes_before_an_event_or_while_the_log_is_not_read_to_its_end() {
    let tail = ready();
    let mut watch = tail.watch(query(10)).await.expect("a watch");
    advance(3 * BOOKMARK_AFTER).await;
    reads(&tail, 11);
    reads(&tail, 12);
    reads_to(&tail, 13);
    for version in [11, 12] {
        assert_eq!(next(&mut watch).and_then(|event| event.resume_version()), Some(version));
    }
    assert_eq!(next(&mut watch), Some(bookmark(13)));
    advance(3 * BOOKMARK_AFTER).await;
    assert_eq!(next(&mut watch), None, "nothing was read since");
    reads(&tail, 14);
    assert!(matches!(next(&mut watch), Some(Event::Added(_))));
    assert_eq!(next(&mut watch), None, "there may be more");
    reads_to(&tail, 14);
    assert_eq!(next(&mut watch), Some(bookmark(14)));
}

/// The log grows all the time, so that more than its end has been read whenever a watch looks, and a slow client is always some events
/// behind.
#[tokio::test(start_paused = true)]
async fn at_most_10_s_are_between_two_bookmarks_while_the_log_grows_all_the_time() {
    let tail = ready();
    let other = WatchQuery { filter: Filter::of(Kind::Secret), ..query(10) };
    let mut quick = tail.watch(query(10)).await.expect("a watch");
    let mut slow = tail.watch(query(10)).await.expect("a watch");
    let mut idle = tail.watch(other).await.expect("a watch");
    let mut seen: [Seen; 3] = [Seen::new(), Seen::new(), Seen::new()];
    for version in 10..1010 {
        advance(Duration::from_millis(100)).await;
        reads_to(&tail, version);
        // The next read has begun, and its end is not there yet.
        reads(&tail, version + 1);
        while let Some(event) = next(&mut quick) {
            seen[0].note(&event, tail.state().version);
        }
        if version >= 15
            && let Some(event) = next(&mut slow)
        {
            seen[1].note(&event, tail.state().version);
        }
        while let Some(event) = next(&mut idle) {
            seen[2].note(&event, tail.state().version);
        }
    }
    assert_eq!(seen.map(|seen| (seen.bookmarks, seen.events)), [(12, 1000), (11, 984), (12, 0)]);
}

struct Seen {
    last: Instant,
    version: i64,
    bookmarks: u32,
    events: u32,
}

impl Seen {
    fn new() -> Self {
        Self { last: Instant::now(), version: 10, bookmarks: 0, events: 0 }
    }

    /// Bookmarks come in time, versions ascend, and no bookmark is older than 10 s.
    fn note(&mut self, event: &Event, newest: i64) {
        let Event::Bookmark { version, .. } = event else {
            let version = event.resume_version().expect("a version");
            assert_eq!(version, self.version.max(10) + 1, "each version once");
            (self.version, self.events) = (version, self.events + 1);
            return;
        };
        assert!(self.last.elapsed() <= Duration::from_secs(10), "{:?}", self.last.elapsed());
        assert!(*version >= self.version && newest - version <= 100, "{version} of {newest} behind {}", self.version);
        if self.events > 0 {
            assert_eq!(*version, self.version, "all events up to it were shown");
        }
        (self.last, self.bookmarks) = (Instant::now(), self.bookmarks + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_watch_is_woken_by_an_event() {
    let tail = ready();
    let mut watch = tail.watch(query(10)).await.expect("a watch");
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::task::yield_now().await;
    reads(&tail, 11);
    assert!(matches!(waiting.await.expect("no panic"), Ok(Event::Added(_))));
}

#[tokio::test(start_paused = true)]
async fn the_lag_of_an_event_is_the_time_since_the_tail_has_read_it() {
    let tail = ready();
    let mut watch = tail.watch(query(10)).await.expect("a watch");
    reads(&tail, 11);
    advance(Duration::from_secs(2)).await;
    reads(&tail, 12);
    advance(Duration::from_secs(3)).await;
    for lag in [5, 3] {
        assert!(next(&mut watch).is_some());
        assert_eq!(watch.lag(), Some(Duration::from_secs(lag)));
    }
    advance(BOOKMARK_AFTER).await;
    reads_to(&tail, 12);
    assert_eq!((next(&mut watch), watch.lag()), (Some(bookmark(12)), None), "a bookmark is no change");
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_ring_ends_a_waiting_watch_and_the_ending_stays() {
    let tail = ready();
    let mut watch = tail.watch(query(10)).await.expect("a watch");
    assert_eq!(next(&mut watch), None);
    tail.0.ring.write().restart(100);
    for _ in 0..2 {
        assert!(matches!(watch.next().await, Err(Ending::Gone)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_does_not_start_before_the_log_was_read() {
    let begun = Instant::now();
    let outcome = tail().watch(query(10)).await.err();
    assert!(matches!(outcome, Some(ListError::TailBehind { .. })), "{outcome:?}");
    assert_eq!(begun.elapsed(), PATIENCE);
    let failed = tail();
    failed.0.progress.send_modify(|progress| {
        progress.failure = Some(crate::db::Error::PoolExhausted { seconds: 5 });
    });
    let outcome = failed.watch(query(10)).await.err();
    assert!(matches!(outcome, Some(ListError::Database(_))), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_version_ahead_of_the_tail_is_decided_on_by_a_read_that_begins_later() {
    let tail = ready();
    let mut wanted = tail.0.wanted.subscribe();
    let replica = tail.clone();
    let served = tokio::spawn(async move {
        for newest in [12, 12] {
            wanted.changed().await.expect("a watch wants a read");
            let number = *wanted.borrow_and_update();
            // A read that has begun before does not count.
            reads_to(&replica, 11);
            replica.0.ring.write().reach_end(newest, Instant::now());
            replica.0.progress.send_modify(|progress| progress.served = number);
        }
    });
    assert!(tail.watch(query(12)).await.is_ok());
    assert!(matches!(tail.watch(query(13)).await, Err(ListError::Gone)));
    served.await.expect("both reads were wanted");
    assert!(matches!(tail.watch(query(4)).await, Err(ListError::Gone)), "below the base");
}

/// Who needs no token.
const ANYBODY: SlotOwner = SlotOwner { token: None, is_administrator: true };

/// All that read at the same time do so.
fn all_read(tail: &Tail) -> Vec<Slot> {
    std::iter::from_fn(|| tail.0.readers.try_take(ANYBODY).ok()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_watch_waits_5_s_for_its_turn_to_read_and_one_that_has_begun_30_s() {
    let tail = ready();
    let reading = all_read(&tail);
    let begun = Instant::now();
    let outcome = tail.watch(WatchQuery { from: None, ..query(0) }).await.err();
    assert!(matches!(outcome, Some(ListError::NoSlot { within: PATIENCE })), "{outcome:?}");
    assert_eq!(begun.elapsed(), PATIENCE);
    let mut watch = tail.watch(query(10)).await.expect("the ring needs no slot");
    watch.phase = Phase::State(None);
    let outcome = watch.next().await;
    assert!(matches!(outcome, Err(Ending::Failed(ListError::NoSlot { within: LATER_PATIENCE }))), "{outcome:?}");
    assert_eq!(begun.elapsed(), PATIENCE + LATER_PATIENCE);
    drop(reading);
    assert!(tail.read_slot(ANYBODY, watch.epoch, PATIENCE).await.is_ok(), "who waits no longer takes no slot");
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_ring_ends_a_watch_that_waits_for_a_slot() {
    let tail = ready();
    let _reading = all_read(&tail);
    let begun = Instant::now();
    let mut watch = Box::pin(tail.watch(WatchQuery { from: None, ..query(0) }));
    assert!(watch.as_mut().now_or_never().is_none());
    tail.0.ring.write().restart(100);
    tail.0.progress.send_modify(|_| {});
    assert!(matches!(watch.await, Err(ListError::Gone)));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_token_whose_watches_read_leaves_turns_to_others() {
    let tail = ready();
    let of = |token: u8| SlotOwner { token: Some([token; 32]), is_administrator: false };
    let watches: Vec<_> = (0..9).map(|_| tail.watch_of(of(1), WatchQuery { from: None, ..query(0) })).collect();
    let mut watches: Vec<_> = watches.into_iter().map(Box::pin).collect();
    assert!(watches.iter_mut().all(|watch| watch.as_mut().now_or_never().is_none()));
    assert!(tail.0.readers.try_take(of(1)).is_err(), "its turns are taken");
    assert!(tail.0.readers.try_take(of(2)).is_ok());
}
