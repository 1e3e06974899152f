//! What a phase costs: the difference of counters at its begin and at its end.

use std::collections::HashMap;
use std::time::Duration;

use integration::{ControlPlane, Error, Filter, Mark, Postgres, RabbitMq, Reference, Sink, Towline, Usage};

/// Where counters are read. A world has those that matter to it.
#[derive(Default)]
pub(crate) struct Probes<'w> {
    /// The processes that do the job.
    pub(crate) programs: Vec<&'w dyn Program>,
    /// The API servers, and the user as whom the programs ask them.
    pub(crate) planes: Vec<(&'w ControlPlane, &'static str)>,
    /// The database server, and a connection of its administrator to the programs' database.
    pub(crate) database: Option<(&'w Postgres, &'w tokio_postgres::Client)>,
    pub(crate) broker: Option<&'w RabbitMq>,
    /// The API that the inventory posts to.
    pub(crate) sink: Option<&'w Sink>,
}

pub(crate) trait Program {
    fn id(&self) -> i32;
    fn usage(&self) -> Result<Usage, Error>;
    /// Begins its peak of memory anew.
    fn reset_rss_peak(&self) -> Result<(), Error>;
}

#[derive(Default)]
pub(crate) struct Done {
    /// The number of changes. The table shows costs per change, or the total if there were none.
    pub(crate) changes: Option<usize>,
    /// How long it took, unless that was set.
    pub(crate) time: Option<Duration>,
    /// How long single changes took.
    pub(crate) delays: Vec<Duration>,
}

/// The figures of a phase by their names, in the order of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(pub(crate) Vec<(String, f64)>);

/// Counters at the begin of a phase.
pub(crate) struct Meter {
    /// By process: one that starts within the phase has used nothing before.
    programs: HashMap<i32, Duration>,
    planes: Vec<(Mark, Duration)>,
    database: Duration,
    broker: Duration,
    posts: usize,
}

/// The programs' statements in this database since the last reset.
const STATEMENTS: &str = "SELECT coalesce(sum(s.calls), 0)::int8 FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
                          JOIN pg_database d ON d.oid = s.dbid WHERE r.rolname <> current_user AND d.datname = current_database()";
/// The statistics of a hub's database are in a schema of their own. A phase begins with what autovacuum knows a minute later: plans of statements
/// that are kept from a time when tables were empty are a matter of that minute.
const RESET: &str = "SET search_path TO public, statistics; ANALYZE; SELECT pg_stat_statements_reset()";

impl Meter {
    pub(crate) async fn begin(probes: &Probes<'_>) -> Result<Self, Error> {
        if let Some((_, sql)) = probes.database {
            sql.batch_execute(RESET).await.map_err(Error::database("reset the statistics"))?;
        }
        let mut planes = Vec::new();
        for (plane, _) in &probes.planes {
            planes.push((plane.audit()?.mark().await?, plane.usage()?.cpu));
        }
        let mut programs = HashMap::new();
        for program in &probes.programs {
            program.reset_rss_peak()?;
            programs.insert(program.id(), program.usage()?.cpu);
        }
        Ok(Self {
            programs,
            planes,
            database: database_cpu(probes)?,
            broker: broker_cpu(probes)?,
            posts: probes.sink.map_or(0, |sink| sink.told().len()),
        })
    }

    pub(crate) async fn end(self, probes: &Probes<'_>, done: &Done) -> Result<Figures, Error> {
        let mut cpu = Duration::ZERO;
        let mut peak = 0_u64;
        for program in &probes.programs {
            let usage = program.usage()?;
            let before = self.programs.get(&program.id()).copied().unwrap_or_default();
            cpu += usage.cpu.saturating_sub(before);
            peak = peak.max(usage.rss_peak);
        }
        let mut figures = Figures::default();
        // All counters of CPU time are read before anything that costs some.
        let mut servers = Vec::new();
        for ((plane, _), (_, before)) in probes.planes.iter().zip(&self.planes) {
            let used = plane.usage()?.cpu.saturating_sub(*before);
            servers.push((format!("{} API CPU ms", plane.name()), used));
        }
        if probes.database.is_some() {
            servers.push(("database CPU ms".to_owned(), database_cpu(probes)?.saturating_sub(self.database)));
        }
        if probes.broker.is_some() {
            servers.push(("broker CPU ms".to_owned(), broker_cpu(probes)?.saturating_sub(self.broker)));
        }

        figures.of_time(done);
        let each = float(done.changes.unwrap_or(1).max(1));
        let (mut requests, mut watches) = (0, 0);
        for ((plane, user), (mark, _)) in probes.planes.iter().zip(&self.planes) {
            let all = plane.audit()?.records(&Filter::since(*mark).user(user).with_watches()).await?;
            let begun = all.iter().filter(|record| record.verb == "watch").count();
            requests += all.len() - begun;
            watches += begun;
        }
        if !probes.planes.is_empty() {
            figures.add("requests", float(requests) / each);
        }
        if !probes.planes.is_empty() && done.changes.is_none() {
            figures.add("watches", float(watches));
        }
        if let Some((_, sql)) = probes.database {
            let row = sql.query_one(STATEMENTS, &[]).await.map_err(Error::database("read the statistics"))?;
            figures.add("statements", float(usize::try_from(row.get::<_, i64>(0)).unwrap_or_default()) / each);
        }
        if let Some(sink) = probes.sink {
            figures.add("posts", float(sink.told().len() - self.posts) / each);
        }
        figures.add("CPU ms", milliseconds(cpu) / each);
        for (name, used) in servers {
            figures.add(&name, milliseconds(used) / each);
        }
        figures.add("MiB", mebibytes(peak));
        Ok(figures)
    }
}

fn database_cpu(probes: &Probes<'_>) -> Result<Duration, Error> {
    probes.database.map_or(Ok(Duration::ZERO), |(server, _)| server.cpu())
}

fn broker_cpu(probes: &Probes<'_>) -> Result<Duration, Error> {
    probes.broker.map_or(Ok(Duration::ZERO), RabbitMq::cpu)
}

impl Figures {
    fn add(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    fn of_time(&mut self, done: &Done) {
        if let Some(time) = done.time {
            self.add("seconds", time.as_secs_f64());
            if let Some(changes) = done.changes.filter(|_| !time.is_zero()) {
                self.add("per second", float(changes) / time.as_secs_f64());
            }
        }
        let mut delays = done.delays.clone();
        delays.sort_unstable();
        for share in [50, 99] {
            // The smallest one that this share of all does not exceed.
            let rank = (delays.len() * share).div_ceil(100).saturating_sub(1);
            if let Some(delay) = delays.get(rank) {
                self.add(&format!("p{share} ms"), milliseconds(*delay));
            }
        }
    }
}

impl Program for Towline {
    fn id(&self) -> i32 {
        self.process_id()
    }

    fn usage(&self) -> Result<Usage, Error> {
        Towline::usage(self)
    }

    fn reset_rss_peak(&self) -> Result<(), Error> {
        Towline::reset_rss_peak(self)
    }
}

impl Program for Reference {
    fn id(&self) -> i32 {
        self.process_id()
    }

    fn usage(&self) -> Result<Usage, Error> {
        Reference::usage(self)
    }

    fn reset_rss_peak(&self) -> Result<(), Error> {
        Reference::reset_rss_peak(self)
    }
}

/// The middle one; of an even number, the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, upper))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are below 2^52 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// Counts of changes and requests as numbers to divide by.
fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Done, Figures, median};

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut figures = Figures::default();
        let delays = (1..=200).rev().map(Duration::from_millis).collect();
        figures.of_time(&Done { changes: Some(200), time: Some(Duration::from_secs(4)), delays });
        let names: Vec<_> = figures.0.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(names, [("seconds", 4.0), ("per second", 50.0), ("p50 ms", 100.0), ("p99 ms", 198.0)]);
        let mut figures = Figures::default();
        figures.of_time(&Done::default());
        assert!(figures.0.is_empty());
    }

    #[test]
    fn a_median_is_in_the_middle_of_what_was_measured() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(Vec::new()), None);
    }
}
