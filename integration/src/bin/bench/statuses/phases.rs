//! One run: from empty statuses to a daemon that is started again with everything in step.

use std::time::{Duration, Instant};

use integration::arrivals::Arrivals;
use integration::load::burst;
use integration::{Error, Towline};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::meter::{Cost, Meter, metric};
use super::seen::{self, Wanted, Word};
use super::world::{FAMILIES, LONGEST_STEP, OTHERS, Policies, World, wait_at_rest};
use crate::measure::Latency;
use crate::options::{Size, StatusOptions};

/// The daemon's own bound on writes at the same time, which the plain loop has as well.
const MAX_IN_FLIGHT: usize = 64;
/// Between two changes of the trickle.
const PACE: Duration = Duration::from_millis(500);
/// Between two looks at what the database is doing.
const LOOK: Duration = Duration::from_millis(50);

/// What a run has shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) size: Size,
    pub(crate) start: Written,
    /// Policies that were written while the rows of others were still being read, at the start.
    pub(crate) written_while_reading: usize,
    pub(crate) idle: Idle,
    pub(crate) flips: Vec<Written>,
    pub(crate) trickle: Option<Trickle>,
    /// The same with a daemon that listens.
    pub(crate) trickle_notified: Option<Trickle>,
    pub(crate) flip_notified: Option<Written>,
    pub(crate) restart: Written,
    /// The same patches as in a flip, by a plain loop and without the daemon.
    pub(crate) alone: Written,
}

/// A phase in which everything is written.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Written {
    /// From its beginning (the commit, the start of the process) until the last write was seen.
    pub(crate) seconds: f64,
    /// From the first policy that was seen to the last.
    pub(crate) writing_seconds: f64,
    /// Policies a second in that time.
    pub(crate) per_second: f64,
    pub(crate) cost: Cost,
}

/// Passes over what does not change.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Idle {
    /// Passes of each family.
    pub(crate) passes: f64,
    /// How long was looked on.
    pub(crate) seconds: f64,
    /// Length of a pass of the slowest family.
    pub(crate) pass_seconds: f64,
    pub(crate) cost: Cost,
}

/// Changes one by one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Trickle {
    pub(crate) changes: usize,
    /// From the commit to the write seen in a watch.
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) cost: Cost,
}

/// A run that goes on.
pub(crate) struct Run<'r> {
    pub(crate) world: &'r World,
    pub(crate) options: &'r StatusOptions,
    pub(crate) policies: Policies,
}

impl Run<'_> {
    /// Does all phases, and tells each when it has ended.
    pub(crate) async fn phases(&self, mut told: impl FnMut(String)) -> Result<Measured, Error> {
        let (towline, start, written_while_reading) = self.start().await?;
        told(start.line("start"));
        let idle = self.idle(&towline).await?;
        told(idle.line());
        let mut word = Word::Compliant;
        let mut flips = Vec::new();
        for number in 0..self.options.flips {
            word = word.other();
            // In the first, the second, the third part of the time between two passes.
            let offset = self.options.interval.mul_f64((f64::from(number) + 0.5) / f64::from(self.options.flips));
            let flip = self.flip(&towline, word, offset).await?;
            told(flip.line("flip"));
            flips.push(flip);
        }
        let trickle = self.trickle(&towline, word).await?;
        if let Some(trickle) = &trickle {
            told(trickle.line("trickle"));
        }
        towline.terminate(LONGEST_STEP).await?;
        drop(towline);
        let (towline, restart) = self.restart().await?;
        told(restart.line("restart"));
        towline.terminate(LONGEST_STEP).await?;
        drop(towline);
        let (mut trickle_notified, mut flip_notified) = (None, None);
        if self.options.notify {
            let towline = self.world.towline(self.options, true).await?;
            self.set_all(&towline, word).await?;
            trickle_notified = self.trickle(&towline, word).await?;
            if let Some(trickle) = &trickle_notified {
                told(trickle.line("listening"));
            }
            word = word.other();
            let flip = self.flip(&towline, word, self.options.interval / 2).await?;
            told(flip.line("listening"));
            flip_notified = Some(flip);
            towline.terminate(LONGEST_STEP).await?;
        }
        let alone = self.alone(word.other()).await?;
        told(alone.line("alone"));
        let size = self.policies.size;
        Ok(Measured {
            size,
            start,
            written_while_reading,
            idle,
            flips,
            trickle,
            trickle_notified,
            flip_notified,
            restart,
            alone,
        })
    }

    /// From the start of the process, with empty statuses, until everything is on the hub.
    async fn start(&self) -> Result<(Towline, Written, usize), Error> {
        let world = self.world;
        let seen = seen::policies(&world.hub, self.policies.size, Wanted::All(Word::Compliant)).await?;
        let mut others = Vec::new();
        for plural in OTHERS {
            others.push(seen::others(&world.hub, plural).await?);
        }
        let meter = Meter::begin(world, None).await?;
        let began = Instant::now();
        let towline = world.towline(self.options, false).await?;
        let all = async {
            self.wait_for_all(&seen).await?;
            for other in &others {
                other.wait_for(self.options.others, LONGEST_STEP).await?;
            }
            Ok(())
        };
        let (written_while_reading, ()) = tokio::try_join!(self.written_while_reading(&seen), all)?;
        let last = others.iter().flat_map(|other| other.all().into_values()).max();
        wait_at_rest(&towline, 0).await?;
        let cost = meter.end(world, &towline).await?;
        Ok((towline, Written::of(began, &seen, last, cost), written_while_reading))
    }

    /// How many policies have been seen when the daemon's read of their rows was last under way.
    async fn written_while_reading(&self, seen: &Arrivals) -> Result<usize, Error> {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'towline%' AND state = 'active' \
                   AND query LIKE '%status.compliance%ORDER BY%'";
        let mut written = 0;
        while seen.seen() < self.policies.size.policies {
            let before = seen.seen();
            let row = self.world.sql.query_one(sql, &[]).await.map_err(Error::database("look at the statements"))?;
            if row.get::<_, i64>(0) > 0 {
                written = before;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(written)
    }

    async fn idle(&self, towline: &Towline) -> Result<Idle, Error> {
        wait_at_rest(towline, 1).await?;
        let before = Passes::of(towline).await?;
        let meter = Meter::begin(self.world, Some(towline)).await?;
        let began = Instant::now();
        tokio::time::sleep(self.options.interval * u32::try_from(self.options.passes).unwrap_or(u32::MAX)).await;
        let seconds = began.elapsed().as_secs_f64();
        let cost = meter.end(self.world, towline).await?;
        let after = Passes::of(towline).await?;
        let all: Vec<(f64, f64)> = before
            .0
            .iter()
            .zip(&after.0)
            .map(|(before, after)| (after.0 - before.0, (after.1 - before.1) / (after.0 - before.0).max(1.0)))
            .collect();
        let passes = all.iter().map(|(passes, _)| *passes).fold(0.0, f64::max);
        let pass_seconds = all.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        Ok(Idle { passes, seconds, pass_seconds, cost })
    }

    /// All rows get another word in one transaction, so long after a pass.
    async fn flip(&self, towline: &Towline, word: Word, offset: Duration) -> Result<Written, Error> {
        let seen = seen::policies(&self.world.hub, self.policies.size, Wanted::All(word)).await?;
        wait_at_rest(towline, 1).await?;
        let moment = tokio::time::Instant::now() + offset;
        let mut meter = Meter::begin(self.world, Some(towline)).await?;
        tokio::time::sleep_until(moment).await;
        let before = self.world.server.cpu()?;
        self.update_all(word).await?;
        let began = Instant::now();
        meter.forgive(self.world.server.cpu()?.saturating_sub(before));
        self.wait_for_all(&seen).await?;
        wait_at_rest(towline, 0).await?;
        let cost = meter.end(self.world, towline).await?;
        self.world.vacuum().await?;
        Ok(Written::of(began, &seen, None, cost))
    }

    async fn update_all(&self, word: Word) -> Result<(), Error> {
        let flip = "UPDATE status.compliance SET compliance = $1::text::status.compliance_type \
                    WHERE compliance <> $1::text::status.compliance_type";
        self.world.execute("flip all rows", flip, &[word.reported()]).await.map(|_| ())
    }

    /// Two rows change a second, each of another policy; all have this word before.
    async fn trickle(&self, towline: &Towline, word: Word) -> Result<Option<Trickle>, Error> {
        let changes = self.options.trickle;
        if changes == 0 {
            return Ok(None);
        }
        let seen = seen::policies(&self.world.hub, self.policies.size, Wanted::One).await?;
        wait_at_rest(towline, 1).await?;
        let meter = Meter::begin(self.world, Some(towline)).await?;
        let change = "UPDATE status.compliance SET compliance = $1::text::status.compliance_type \
                      WHERE leaf_hub_name = 'hub-1' AND id = $2::text::uuid AND cluster_name = 'cluster-0001'";
        let mut ticks = interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut committed = Vec::with_capacity(changes);
        for (name, id) in self.policies.uids.iter().take(changes) {
            ticks.tick().await;
            self.world.execute("change a row", change, &[word.other().reported(), id]).await?;
            committed.push((name, Instant::now()));
        }
        seen.wait_for(changes, LONGEST_STEP).await?;
        let cost = meter.end(self.world, towline).await?;
        let pairs: Vec<(Instant, Instant)> =
            committed.into_iter().filter_map(|(name, at)| Some((at, seen.first(name)?))).collect();
        Ok(Some(Trickle { changes: pairs.len(), latency_ms: Latency::of(&pairs), cost }))
    }

    /// Every row has this word again, and the hub shows it.
    async fn set_all(&self, towline: &Towline, word: Word) -> Result<(), Error> {
        towline.wait_ready(LONGEST_STEP).await?;
        self.update_all(word).await?;
        wait_at_rest(towline, 2).await?;
        self.world.vacuum().await
    }

    /// The daemon is started with everything in step: it reads all rows, and writes nothing.
    async fn restart(&self) -> Result<(Towline, Written), Error> {
        let meter = Meter::begin(self.world, None).await?;
        let began = Instant::now();
        let towline = self.world.towline(self.options, false).await?;
        wait_at_rest(&towline, 0).await?;
        let seconds = began.elapsed().as_secs_f64();
        let cost = meter.end(self.world, &towline).await?;
        Ok((towline, Written { seconds, writing_seconds: 0.0, per_second: 0.0, cost }))
    }

    /// The same patches by a plain loop: what the API server takes.
    async fn alone(&self, word: Word) -> Result<Written, Error> {
        let seen = seen::policies(&self.world.hub, self.policies.size, Wanted::All(word)).await?;
        let patches = self.policies.patches(word)?;
        let before = self.world.hub.usage()?;
        let began = Instant::now();
        burst(&self.world.client, patches, MAX_IN_FLIGHT).await?;
        self.wait_for_all(&seen).await?;
        let after = self.world.hub.usage()?;
        let cost = Cost {
            api_server_cpu_seconds: after.api_server.cpu.saturating_sub(before.api_server.cpu).as_secs_f64(),
            etcd_cpu_seconds: after.etcd.cpu.saturating_sub(before.etcd.cpu).as_secs_f64(),
            requests: self.policies.size.policies,
            ..Cost::default()
        };
        Ok(Written::of(began, &seen, None, cost))
    }

    async fn wait_for_all(&self, seen: &Arrivals) -> Result<(), Error> {
        seen.wait_for(self.policies.size.policies, LONGEST_STEP).await
    }
}

/// Passes of each family so far, and the seconds that they took.
struct Passes(Vec<(f64, f64)>);

impl Passes {
    async fn of(towline: &Towline) -> Result<Self, Error> {
        let mut all = Vec::new();
        for family in FAMILIES {
            let series = |part: &str| format!("towline_status_sync_pass_seconds_{part}{{family=\"{family}\"}}");
            all.push((metric(towline, &series("count")).await?, metric(towline, &series("sum")).await?));
        }
        Ok(Self(all))
    }
}

impl Written {
    /// `other`: the last write of another family that was seen.
    fn of(began: Instant, seen: &Arrivals, other: Option<Instant>, cost: Cost) -> Self {
        let moments = seen.all();
        let (first, last) = (moments.values().min().copied(), moments.values().max().copied());
        let last_of_all = last.max(other).unwrap_or(began);
        let writing = last.zip(first).map(|(last, first)| last.saturating_duration_since(first)).unwrap_or_default();
        let writing_seconds = writing.as_secs_f64();
        let per_second = crate::phases::to_float(moments.len().saturating_sub(1)) / writing_seconds.max(f64::EPSILON);
        let seconds = last_of_all.saturating_duration_since(began).as_secs_f64();
        Self { seconds, writing_seconds, per_second, cost }
    }

    fn line(&self, name: &str) -> String {
        format!(
            "  {name:<9}{:>7.2} s, policies in {:.2} s ({:.0} a second); {}",
            self.seconds,
            self.writing_seconds,
            self.per_second,
            self.cost.line()
        )
    }
}

impl Idle {
    fn line(&self) -> String {
        format!(
            "  idle     {:>7.2} s, {:.0} passes of {:.3} s; {}",
            self.seconds,
            self.passes,
            self.pass_seconds,
            self.cost.line()
        )
    }
}

impl Trickle {
    fn line(&self, name: &str) -> String {
        let latency = self.latency_ms.map(|ms| format!("p50 {:.0} p99 {:.0} max {:.0} ms", ms.p50, ms.p99, ms.max));
        format!("  {name:<9}{:>4} changes, {}; {}", self.changes, latency.unwrap_or_default(), self.cost.line())
    }
}

impl Cost {
    fn line(&self) -> String {
        format!(
            "CPU s: towline {:.2}, database {:.2}, API server {:.2}, etcd {:.2}, load {:.2}; {} requests, {} statements ({} \
             different); {:.1} MiB",
            self.daemon_cpu_seconds,
            self.database_cpu_seconds,
            self.api_server_cpu_seconds,
            self.etcd_cpu_seconds,
            self.load_cpu_seconds,
            self.requests,
            self.statements,
            self.different_statements,
            self.daemon_peak_mib,
        )
    }
}
