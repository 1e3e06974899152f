//! The runner: every phase of every job is measured in the same way.

use integration::Error;

use crate::measure::{Done, Meter, Probes};
use crate::table::{Row, Table};

pub(crate) struct Phase<S> {
    /// As the table has it.
    pub(crate) name: String,
    pub(crate) step: S,
    /// What is counted, such as `objects`.
    pub(crate) counted: &'static str,
}

impl<S> Phase<S> {
    pub(crate) fn new(name: impl Into<String>, step: S, counted: &'static str) -> Self {
        Self { name: name.into(), step, counted }
    }
}

/// A world in which a job is done, from its first phase to its last.
pub(crate) trait World {
    type Step: Copy;
    /// What a step needs and the runner does not measure: an open watch, for example.
    type Ready;

    /// In the order in which they happen.
    fn phases(&self) -> Vec<Phase<Self::Step>>;

    fn probes(&self) -> Probes<'_>;

    /// Waits until nothing is under way: what follows a phase belongs to it.
    async fn settled(&self) -> Result<(), Error>;

    /// Makes a step ready, unmeasured.
    async fn prepare(&mut self, step: Self::Step) -> Result<Self::Ready, Error>;

    async fn perform(&mut self, step: Self::Step, ready: Self::Ready) -> Result<Done, Error>;

    /// Checks the result of a step. A program that did not do its work gets no figures.
    async fn verify(&self, _step: Self::Step) -> Result<(), Error> {
        Ok(())
    }
}

/// Does all phases, and adds a run to each one's row. `size` says among how many objects, `who` which program or setting.
pub(crate) async fn run(world: &mut impl World, size: &str, who: &str, table: &mut Table) -> Result<(), Error> {
    eprintln!("{}", [table.job, who, size].join(" ").trim_end());
    for Phase { name, step, counted } in world.phases() {
        let ready = world.prepare(step).await?;
        world.settled().await?;
        let meter = Meter::begin(&world.probes()).await?;
        let done = world.perform(step, ready).await?;
        world.settled().await?;
        let figures = meter.end(&world.probes(), &done).await?;
        world.verify(step).await?;
        let count = done.changes.map_or_else(String::new, |changes| format!("{changes} {counted}"));
        let row = Row { size: size.to_owned(), phase: name, who: who.to_owned(), count, runs: vec![figures] };
        eprintln!("{}", row.line());
        table.add(row);
    }
    Ok(())
}
