//! Reads the `status` rows of hub objects and rolls them up, one object after the other.

use super::statements::Statements;
use crate::db::{Database, Error, Rows, Type};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::families::{Fields, RollUp, StatusRow};
use crate::status_sync::plan::{Fingerprint, RowId, Sample, begin_roll_up};

/// The rows of one hub object, rolled up.
#[derive(Debug)]
pub struct RolledUp {
    /// The id of its row of `spec`.
    pub id: RowId,
    /// The number and the hash of the rows that were read.
    pub fingerprint: Fingerprint,
    /// The desired fields, one item for each object that is written.
    pub desired: Vec<Fields>,
    /// The rows that could not be read, or not completely.
    pub bad: Sample,
}

/// The progress after a row.
#[derive(Debug)]
pub enum Reading {
    Row,
    /// A row of the next object was read, so this object is complete.
    Object(RolledUp),
    /// All rows have been read; this was the last object.
    End(Option<RolledUp>),
}

/// A read of rows that is running. Only the rows of the current object are in memory.
pub struct StatusRows<'d> {
    rows: Rows<'d>,
    assembly: Assembly,
}

impl<'d> StatusRows<'d> {
    /// Starts to read the rows of these objects.
    pub async fn start(
        database: &'d Database,
        family: StatusFamily,
        statements: &Statements,
        ids: &[RowId],
    ) -> Result<Self, Error> {
        // A block, so that the ids are freed before the rows arrive.
        let rows = {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            database.rows(family.rows_name(), &statements.rows, &[(&ids, Type::TEXT_ARRAY)]).await?
        };
        Ok(Self { rows, assembly: Assembly { family, current: None } })
    }

    pub async fn next(&mut self) -> Result<Reading, Error> {
        let Some(row) = self.rows.next().await? else { return Ok(Reading::End(self.assembly.complete())) };
        let id: &str = self.rows.column(&row, 0)?;
        let Ok(id) = id.parse() else { return Ok(Reading::Row) };
        let (leaf_hub, name): (Option<&str>, Option<&str>) = (self.rows.column(&row, 1)?, self.rows.column(&row, 2)?);
        let (value, hash): (Option<&str>, Option<i64>) = (self.rows.column(&row, 3)?, self.rows.column(&row, 4)?);
        // Only after the row is decoded, since an error would lose the object that is complete.
        let complete = self.assembly.begin(id);
        // An object without rows has one line of nulls.
        if let (Some(leaf_hub), Some(hash)) = (leaf_hub, hash) {
            self.assembly.add(&StatusRow { leaf_hub, name: name.unwrap_or_default(), value }, hash);
        }
        Ok(complete.map_or(Reading::Row, Reading::Object))
    }
}

/// Rolls up rows that come one object after the other.
struct Assembly {
    family: StatusFamily,
    current: Option<Current>,
}

/// The object whose rows are being read.
struct Current {
    id: RowId,
    fingerprint: Fingerprint,
    roll_up: Box<dyn RollUp>,
    bad: Sample,
}

impl Assembly {
    /// Begins a row of this object. Returns the previous object if it is another one, and so complete.
    fn begin(&mut self, id: RowId) -> Option<RolledUp> {
        if self.current.as_ref().is_some_and(|current| current.id == id) {
            return None;
        }
        let complete = self.complete();
        let (fingerprint, bad) = (Fingerprint::default(), Sample::default());
        self.current = Some(Current { id, fingerprint, roll_up: begin_roll_up(self.family), bad });
        complete
    }

    /// Adds a row of the current object.
    fn add(&mut self, row: &StatusRow<'_>, hash: i64) {
        let Some(current) = &mut self.current else { return };
        current.fingerprint.add(hash);
        let mut faults = Vec::new();
        current.roll_up.take(row, &mut faults);
        for fault in faults {
            current.bad.add(1, || format!("{}/{}: {fault}", row.leaf_hub, row.name));
        }
    }

    /// Returns the current object, whose rows are complete. An object without rows is left out: only change detection
    /// decides that an object has no rows, and a pass then clears it.
    fn complete(&mut self) -> Option<RolledUp> {
        let Current { id, fingerprint, roll_up, bad } = self.current.take()?;
        (fingerprint.rows() > 0).then(|| RolledUp { id, fingerprint, desired: roll_up.finish(), bad })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row<'r>(leaf_hub: &'r str, value: &'r str) -> StatusRow<'r> {
        StatusRow { leaf_hub, name: "p", value: Some(value) }
    }

    #[test]
    fn each_object_is_complete_at_the_first_row_of_the_next_and_one_without_rows_is_left_out() {
        let mut assembly = Assembly { family: StatusFamily::Placements, current: None };
        assert!(assembly.begin(RowId(1)).is_none());
        assembly.add(&row("hub1", "3"), 5);
        assert!(assembly.begin(RowId(1)).is_none(), "the same object");
        assembly.add(&row("hub2", "\"many\""), 6);
        let first = assembly.begin(RowId(2)).expect("the first object is complete");
        assert_eq!((first.id, first.fingerprint), (RowId(1), Fingerprint::new(2, 11)));
        assert_eq!(first.desired, [Fields::from([("numberOfSelectedClusters", json!(3))])]);
        assert_eq!((first.bad.count, first.bad.examples[0].starts_with("hub2/p: ")), (1, true), "{:?}", first.bad);
        assert!(assembly.begin(RowId(3)).is_none(), "the second object has no rows");
        assembly.add(&row("hub1", "4"), 8);
        let last = assembly.complete().expect("the last object is complete");
        assert_eq!((last.id, last.fingerprint, last.bad.count), (RowId(3), Fingerprint::new(1, 8), 0));
        assert!(assembly.complete().is_none());
    }
}
