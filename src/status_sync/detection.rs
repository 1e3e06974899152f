//! Change detection: what the database tells of all hub objects of a family, in one statement.

use super::digest::Fingerprint;
use super::entry::Found;
use super::pass::{Stopped, answer};
use super::poller::{Life, Poller};
use super::tally::Tally;
use crate::actor::Scope;
use crate::cluster::ObjectKey;
use crate::db::{Param, Type};

/// What change detection tells.
#[derive(Default)]
pub(super) struct Detected {
    /// The hub objects.
    pub(super) found: Vec<Found>,
    /// Rows of `status` in all.
    pub(super) rows: i64,
    /// Rows that name nobody.
    pub(super) bad: Tally,
}

impl Poller {
    /// Asks the database. What it tells is complete, or an error.
    pub(super) async fn detect(&self, scope: &Scope, life: &mut Life) -> Result<Detected, Stopped> {
        let params: [Param<'_>; 1] = [(&self.shared.namespace, Type::TEXT)];
        let asked = self.shared.database.rows(self.family.detection_name(), &self.detection, &params);
        let mut rows = answer(scope, life, asked).await?;
        let mut detected = Detected::default();
        while let Some(row) = answer(scope, life, rows.next()).await? {
            let what: &str = rows.column(&row, 0)?;
            let id: Option<&str> = rows.column(&row, 1)?;
            let count: i64 = rows.column(&row, 4)?;
            match what {
                "rows" => detected.rows = count,
                "bad" => detected.bad.add(usize::try_from(count).unwrap_or_default(), || {
                    format!("{}: no name or no namespace", id.unwrap_or_default())
                }),
                _ => {
                    let (namespace, name): (Option<&str>, Option<&str>) =
                        (rows.column(&row, 2)?, rows.column(&row, 3)?);
                    let sum: &str = rows.column(&row, 5)?;
                    match (id.and_then(|id| id.parse().ok()), namespace, name, sum.parse()) {
                        (Some(id), Some(namespace), Some(name), Ok(sum)) => detected.found.push(Found {
                            id,
                            key: ObjectKey::new(namespace, name),
                            print: Fingerprint::new(count, sum),
                        }),
                        _ => detected
                            .bad
                            .add(1, || format!("spec row {}: no name or no namespace", id.unwrap_or_default())),
                    }
                }
            }
        }
        Ok(detected)
    }
}
