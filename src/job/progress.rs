//! What a command prints on standard error while something takes long.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::command::complain;

/// Work that ends sooner prints nothing.
const FIRST: Duration = Duration::from_secs(2);
/// Between two lines.
const FURTHER: Duration = Duration::from_secs(10);

/// Does some work, and says from the third second on what is being done: `applying base.yaml, for 12s`.
pub async fn telling<T>(what: &str, work: impl Future<Output = T>) -> T {
    telling_to(complain, what, work).await
}

async fn telling_to<T>(tell: impl Fn(&str), what: &str, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let mut pause = FIRST;
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(pause) => tell(&format!("{what}, for {}s", begun.elapsed().as_secs())),
        }
        pause = FURTHER;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_two_seconds_is_told() {
        let told = RefCell::new(Vec::new());
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        telling_to(tell, "a", sleep(Duration::from_millis(1_900))).await;
        assert!(told.borrow().is_empty());
        telling_to(tell, "b", sleep(Duration::from_secs(13))).await;
        assert_eq!(*told.borrow(), ["b, for 2s", "b, for 12s"]);
    }
}
