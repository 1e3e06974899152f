//! Change detection: one statement finds the `status` rows of all hub objects of a family.

use super::statements::Statements;
use crate::cluster::ObjectKey;
use crate::db::{Database, Error, Param, Rows, Type};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::{Fingerprint, RowId, Sample};

/// A row of `spec`, as change detection found it.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: RowId,
    /// The name of its hub object.
    pub key: ObjectKey,
    /// The number and the hash of its rows of `status`.
    pub fingerprint: Fingerprint,
}

#[derive(Debug, Default)]
pub struct Detected {
    /// The rows of `spec`.
    pub found: Vec<Found>,
    /// How many rows of `status` there are in total.
    pub rows: i64,
    /// The rows that name no object.
    pub bad: Sample,
}

/// A change detection that is running.
pub struct Detection<'d> {
    rows: Rows<'d>,
    detected: Detected,
}

impl<'d> Detection<'d> {
    /// Starts the statement for one namespace; an empty one means all.
    pub async fn start(
        database: &'d Database,
        family: StatusFamily,
        statements: &Statements,
        namespace: &str,
    ) -> Result<Self, Error> {
        let params: [Param<'_>; 1] = [(&namespace, Type::TEXT)];
        let rows = database.rows(family.detection_name(), &statements.detection, &params).await?;
        Ok(Self { rows, detected: Detected::default() })
    }

    /// Reads the next row of the result. Returns whether there was one.
    pub async fn next(&mut self) -> Result<bool, Error> {
        let Some(row) = self.rows.next().await? else { return Ok(false) };
        let line = Line {
            what: self.rows.column(&row, 0)?,
            id: self.rows.column(&row, 1)?,
            namespace: self.rows.column(&row, 2)?,
            name: self.rows.column(&row, 3)?,
            count: self.rows.column(&row, 4)?,
            sum: self.rows.column(&row, 5)?,
        };
        self.detected.add(&line);
        Ok(true)
    }

    /// The result, after [`next`](Self::next) has reached the end.
    pub fn finish(self) -> Detected {
        self.detected
    }
}

/// A row of the statement's result, see [`Statements`].
struct Line<'r> {
    what: &'r str,
    id: Option<&'r str>,
    namespace: Option<&'r str>,
    name: Option<&'r str>,
    count: i64,
    sum: &'r str,
}

impl Detected {
    fn add(&mut self, line: &Line<'_>) {
        let id = || line.id.unwrap_or_default();
        match line.what {
            "rows" => self.rows = line.count,
            "bad" => {
                let count = usize::try_from(line.count).unwrap_or_default();
                self.bad.add(count, || format!("{}: no name or no namespace", id()));
            }
            _ => match (id().parse(), line.namespace, line.name, line.sum.parse()) {
                (Ok(id), Some(namespace), Some(name), Ok(sum)) => self.found.push(Found {
                    id,
                    key: ObjectKey::new(namespace, name),
                    fingerprint: Fingerprint::new(line.count, sum),
                }),
                _ => self.bad.add(1, || format!("spec row {}: no name or no namespace", id())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0b81d5a4-8e0f-4c38-9d7a-0123456789ab";

    #[test]
    fn objects_the_total_and_the_rows_that_name_no_object_are_told_apart() {
        let mut detected = Detected::default();
        let object = Line { what: "object", id: Some(ID), namespace: Some("n"), name: Some("p"), count: 3, sum: "-7" };
        let no_name = Line { name: None, ..object };
        let rows = Line { what: "rows", id: None, namespace: None, name: None, count: 12, sum: "0" };
        let bad = Line { what: "bad", id: Some("hub1/x"), count: 4, ..rows };
        for line in [object, no_name, rows, bad] {
            detected.add(&line);
        }
        let [found] = &detected.found[..] else { panic!("{:?}", detected.found) };
        assert_eq!((found.id.to_string(), &found.key), (ID.to_owned(), &ObjectKey::new("n", "p")));
        assert_eq!(found.fingerprint, Fingerprint::new(3, -7));
        assert_eq!((detected.rows, detected.bad.count), (12, 5));
        let nameless = format!("spec row {ID}: no name or no namespace");
        assert_eq!(detected.bad.examples, [nameless, "hub1/x: no name or no namespace".to_owned()]);
    }
}
