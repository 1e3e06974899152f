//! Waiting on a condition, never on time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Error;

/// Between two looks: a tenth of what was waited so far, but not less and not more than these. A look costs a request or several, and
/// tests keep all processors busy.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(100);

/// Looks until `probe` succeeds, and gives what it found. A probe that fails says what it saw instead.
///
/// # Errors
/// [`Error::TimedOut`] with the last failure, once `limit` is over. A probe that hangs is cut off then, too.
pub async fn eventually<T>(
    what: impl Into<String>,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, Error> {
    let begun = Instant::now();
    let end = begun + limit;
    let mut last = String::from("nothing, the first look did not end");
    loop {
        match timeout(end.saturating_duration_since(Instant::now()), probe()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(seen)) => last = seen,
            Err(_) => return Err(Error::TimedOut { what: what.into(), limit, last }),
        }
        sleep((begun.elapsed() / 10).clamp(SHORTEST, LONGEST)).await;
        if Instant::now() >= end {
            return Err(Error::TimedOut { what: what.into(), limit, last });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::eventually;

    #[tokio::test(start_paused = true)]
    async fn what_comes_late_is_found() {
        let mut looks = 0;
        let found = eventually("the third look", Duration::from_secs(1), async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(format!("look {looks}")) }
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_tells_what_was_waited_for_and_what_was_seen() {
        let never = eventually("the moon", Duration::from_secs(1), async || Err::<(), _>("clouds".to_owned()));
        assert_eq!(never.await.unwrap_err().to_string(), "waited 1 s for the moon; last seen: clouds");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_hangs_does_not_hold_the_limit_up() {
        let hanging = eventually("an answer", Duration::from_secs(1), async || {
            std::future::pending::<()>().await;
            Ok(())
        });
        assert!(hanging.await.unwrap_err().to_string().contains("the first look did not end"));
    }
}
