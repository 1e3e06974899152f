//! How long workers have a cluster that is dead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use integration::Error;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::documents;
use super::world::World;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Looks at the work queue until it is dropped.
pub(super) struct Claims {
    longest: Arc<Mutex<Duration>>,
    looking: JoinHandle<()>,
}

impl Claims {
    /// Begins to look at the clusters with these numbers.
    pub(super) async fn watch(world: &World, dead: impl Iterator<Item = usize>) -> Result<Self, Error> {
        const CLAIMED: &str = "SELECT d.name, w.token FROM towline_work w JOIN towline_documents d ON d.id = w.cluster \
                               WHERE w.holder IS NOT NULL";
        let dead: HashSet<String> = dead.map(documents::name).collect();
        let sql = world.another_connection().await?;
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let looking = tokio::spawn({
            let longest = Arc::clone(&longest);
            async move {
                let mut since: HashMap<(String, i64), Instant> = HashMap::new();
                while let Ok(rows) = sql.query(CLAIMED, &[]).await {
                    let now = Instant::now();
                    let claims = rows.iter().map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1)));
                    let claims = claims.filter(|(cluster, _)| dead.contains(cluster));
                    since = claims
                        .map(|claim| (since.get(&claim).copied().unwrap_or(now), claim))
                        .map(|(at, claim)| (claim, at))
                        .collect();
                    let oldest = since.values().map(|at| now - *at).max().unwrap_or_default();
                    note(&longest, oldest);
                    sleep(INTERVAL).await;
                }
            }
        });
        Ok(Self { longest, looking })
    }

    /// The longest claim so far, in seconds.
    pub(super) fn longest(&self) -> f64 {
        self.longest.lock().as_secs_f64()
    }
}

fn note(longest: &Mutex<Duration>, held: Duration) {
    let mut longest = longest.lock();
    *longest = held.max(*longest);
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.looking.abort();
    }
}
