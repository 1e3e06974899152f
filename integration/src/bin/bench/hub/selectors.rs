//! Lists by selector among all documents, and how PostgreSQL carries them out.

use std::fmt::Write;
use std::time::Instant;

use integration::Error;
use integration::hub::Request;
use serde::Serialize;
use serde_json::Value;

use super::plans::Plans;
use super::reads::{PAGE, walk};
use super::world::World;
use crate::measure::Latency;

/// How often the first page is read.
const READS: usize = 20;

/// One of a kind, and those that match one document in a hundred, the rest of a negation among them.
const SELECTORS: [(&str, &str); 7] = [
    ("=, 1 in 100", "group=g07"),
    ("=, none", "group=none"),
    ("in, 3 in 100", "group in (g01,g02,g03)"),
    ("!=, 99 in 100", "group!=g07"),
    ("!=, 1 in 100", "env!=dev,env!=prod"),
    ("exists, 1 in 100", "canary"),
    ("!exists, 1 in 100", "!owner"),
];

/// A selector's list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Selected {
    pub(crate) what: &'static str,
    pub(crate) selector: &'static str,
    /// How many documents match.
    pub(crate) documents: usize,
    /// Of the first page.
    pub(crate) page_ms: Option<Latency>,
    /// Of all pages.
    pub(crate) all_seconds: f64,
    /// How the first page's documents are found.
    pub(crate) scans: String,
    pub(crate) plan: Option<Value>,
}

/// All selectors, one after the other.
pub(crate) async fn all(world: &World<'_>) -> Result<Vec<Selected>, Error> {
    let mut all = Vec::new();
    let mut client = world.first().client();
    for (what, selector) in SELECTORS {
        let path = path(selector);
        let first = Request::get(&format!("{path}&limit={PAGE}"));
        let mut taken = Vec::new();
        for _ in 0..READS {
            let sent = Instant::now();
            let reply = client.send(&first).await?;
            taken.push(sent.elapsed());
            reply.success()?;
        }
        let walk = walk(&mut client, &path).await?;
        all.push(Selected {
            what,
            selector,
            documents: walk.documents,
            page_ms: Latency::taken(taken),
            all_seconds: walk.taken.as_secs_f64(),
            scans: String::new(),
            plan: None,
        });
    }
    // Behind the measurements: the server works more for a plan that it logs.
    let mut plans = Plans::begin(world).await?;
    for selected in &mut all {
        client.send(&Request::get(&format!("{}&limit={PAGE}", path(selected.selector)))).await?.success()?;
        if let Some(plan) = plans.next(world)? {
            (selected.scans, selected.plan) = (plan.scans, Some(plan.whole));
        }
    }
    plans.end(world).await?;
    Ok(all)
}

/// The list's path, with the selector as a parameter's value.
fn path(selector: &str) -> String {
    selector.bytes().fold("/v1/clusters?labelSelector=".to_owned(), |mut path, byte| {
        if byte.is_ascii_alphanumeric() {
            path.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(path, "%{byte:02X}");
        }
        path
    })
}

impl Selected {
    pub(crate) fn line(&self) -> String {
        let page = self.page_ms.map(|ms| format!("p50 {:.1} max {:.1} ms", ms.p50, ms.max));
        format!(
            "  {:<18}{:<26}{:>6} documents in {:.2} s, first page {}; {}",
            self.what,
            self.selector,
            self.documents,
            self.all_seconds,
            page.unwrap_or_default(),
            self.scans
        )
    }
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_selector_is_escaped() {
        assert_eq!(path("a in (b)"), "/v1/clusters?labelSelector=a%20in%20%28b%29");
    }
}
