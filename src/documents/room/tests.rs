use std::time::Duration;

use futures::FutureExt;

use super::*;

const ONE: Party = Some([1; 32]);
const TWO: Party = Some([2; 32]);

fn kind(outcome: Result<(), Problem>) -> Option<ProblemKind> {
    outcome.err().map(|problem| problem.kind)
}

#[test]
fn a_token_has_at_most_half_and_all_together_have_the_room() {
    let room = Room::new(100, "things");
    let (first, second, other, local) = (room.share(ONE), room.share(ONE), room.share(TWO), room.share(None));
    assert_eq!(first.take(30), Ok(()));
    assert_eq!(second.take(21).err().map(|problem| problem.title), Some("too many things for the token".into()));
    assert_eq!((second.take(20), other.take(50)), (Ok(()), Ok(())));
    assert_eq!(local.take(1).err().map(|problem| problem.title), Some("too many things".into()));
    assert_eq!(room.taken(), (100, 2), "what was refused has nothing");
    first.shrink(10);
    assert_eq!((local.take(20), room.taken()), (Ok(()), (100, 2)));
    drop((first, second, other, local));
    assert_eq!(room.taken(), (0, 0), "nothing is remembered of a token without a share");
}

#[test]
fn what_is_reserved_may_be_the_whole_room_where_a_token_has_nothing_else() {
    let room = Room::new(100, "things");
    let (first, second) = (room.share(ONE), room.share(ONE));
    assert_eq!((first.reserve(40), first.reserve(900), room.taken()), (Ok(()), Ok(()), (100, 1)));
    assert_eq!(kind(second.reserve(1)), Some(ProblemKind::Busy));
    first.shrink(20);
    assert_eq!((second.reserve(30), second.reserve(10), room.taken()), (Ok(()), Ok(()), (50, 1)));
    assert_eq!(kind(first.reserve(21)), Some(ProblemKind::Busy), "it is not alone any more");
    assert_eq!((first.take(0), room.taken()), (Ok(()), (50, 1)));
}

#[test]
fn less_is_never_refused_and_shrinking_takes_nothing() {
    let room = Room::new(100, "things");
    let (large, small) = (room.share(ONE), room.share(None));
    assert_eq!(large.reserve(100), Ok(()));
    large.shrink(99);
    assert_eq!(small.take(1), Ok(()));
    small.shrink(50);
    assert_eq!(room.taken(), (100, 1));
}

/// Longer than any test takes on a paused clock.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[tokio::test(start_paused = true)]
async fn the_whole_room_is_had_after_its_turn_and_smaller_requests_do_not_get_ahead() {
    let room = Room::new(100, "things");
    let (early, large, small) = (room.share(TWO), room.share(ONE), room.share(TWO));
    assert_eq!(early.reserve(30), Ok(()));
    let mut whole = Box::pin(large.wait(usize::MAX, later()));
    assert_eq!(whole.as_mut().now_or_never(), None);
    assert_eq!(kind(small.reserve(1)), Some(ProblemKind::Busy), "the large one would wait for ever");
    let mut behind = Box::pin(small.wait(1, later()));
    assert_eq!(behind.as_mut().now_or_never(), None);
    assert_eq!(kind(early.reserve(31)), Some(ProblemKind::Busy), "nor does one that has something get more");
    drop(early);
    assert_eq!((whole.as_mut().now_or_never(), room.taken()), (Some(Ok(())), (100, 1)));
    assert_eq!(behind.as_mut().now_or_never(), None);
    drop(whole);
    drop(large);
    assert_eq!((behind.await, room.taken()), (Ok(()), (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_token_wait_for_each_other_and_delay_no_other_token() {
    let room = Room::new(100, "things");
    let shares: Vec<Share> = (0..8).map(|_| room.share(ONE)).collect();
    let mut waiting: Vec<_> = shares.iter().map(|share| Box::pin(share.wait(60, later()))).collect();
    let done: Vec<bool> = waiting.iter_mut().map(|wait| wait.as_mut().now_or_never() == Some(Ok(()))).collect();
    assert_eq!(done, [true, false, false, false, false, false, false, false]);
    let other = room.share(TWO);
    assert_eq!((other.reserve(40), room.taken()), (Ok(()), (100, 2)));
    drop(waiting);
    for share in &shares {
        share.shrink(0);
    }
    assert_eq!(room.taken(), (40, 1), "those that stopped waiting have nothing, and nobody waits");
    for share in shares {
        assert_eq!(share.wait(60, later()).await, Ok(()), "one after the other");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_stops_waiting_at_its_time_and_those_behind_it_are_next() {
    let room = Room::new(100, "things");
    let (early, large, small) = (room.share(None), room.share(None), room.share(None));
    assert_eq!(early.reserve(50), Ok(()));
    let (refused, granted) = tokio::join!(
        large.wait(60, Instant::now() + Duration::from_secs(10)),
        small.wait(50, Instant::now() + Duration::from_secs(20)),
    );
    assert_eq!((kind(refused), granted, room.taken()), (Some(ProblemKind::Busy), Ok(()), (100, 0)));
    // One that is dropped leaves its place, too, and gives back what it was granted without noticing.
    {
        let mut gone = Box::pin(large.wait(10, later()));
        assert_eq!(gone.as_mut().now_or_never(), None);
        drop(small);
        assert_eq!(room.taken().0, 60, "granted");
    }
    large.shrink(0);
    assert_eq!(room.taken().0, 50);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait() {
    let room = Room::new(100, "things");
    let early = room.share(ONE);
    assert_eq!(early.reserve(100), Ok(()));
    let shares: Vec<Share> = (0..40).map(|_| room.share(TWO)).collect();
    let mut waiting: Vec<_> = shares.iter().map(|share| Box::pin(share.wait(1, later()))).collect();
    let refused = waiting.iter_mut().filter_map(|wait| wait.as_mut().now_or_never()).map(kind).collect::<Vec<_>>();
    assert_eq!(refused, [Some(ProblemKind::Busy); 8]);
}
