//! The lease job: what a renewal costs, what a lease holds in memory, how long a hub or a credential that fails is
//! felt, and how soon what happens to a pod, a Secret or a replica tells.
//!
//! One control plane is the hub, another the managed cluster with the credentials' Secret. Renewals are counted by the
//! hub's audit log, gaps are read from `spec.renewTime`, which the daemon writes by this machine's clock.

mod fleet;
mod handover;
mod moments;
mod outage;
mod report;
mod world;

use integration::Error;
use serde::Serialize;

use self::fleet::{Fleet, FleetCost};
use self::moments::Moment;
use self::outage::Gap;
use self::world::World;
use crate::options::LeaseOptions;

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    /// The side-car: one lease, one process of its own.
    side_car: Vec<FleetCost>,
    /// Many leases in one daemon.
    fleets: Vec<FleetCost>,
    /// From the hub's first answer after an outage to the first renewal, in seconds.
    hub_return_seconds: Vec<f64>,
    /// From what happens to what it has to bring about, in seconds.
    moments: Vec<(Moment, f64)>,
    /// The longest time between two renewals over rotations of the credentials.
    rotations: Vec<Gap>,
}

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: &LeaseOptions) -> Result<(), String> {
    let measured = measure(options).await.map_err(|error| error.chain())?;
    report::finish(&measured)
}

async fn measure(options: &LeaseOptions) -> Result<Measured, Error> {
    eprintln!("leases: two control planes start");
    let world = World::start().await?;
    let mut measured = Measured::default();
    for run in 1..=options.runs {
        eprintln!("leases: run {run} of {}", options.runs);
        let cost = fleet::side_car(&world, options).await?;
        eprintln!("{}", report::fleet_progress("side-car", &cost));
        measured.side_car.push(cost);
        for fleet in Fleet::all(options) {
            let cost = fleet.measure(&world).await?;
            eprintln!("{}", report::fleet_progress("daemon", &cost));
            measured.fleets.push(cost);
        }
        let seconds = outage::hub_return(&world).await?;
        eprintln!("  hub back: renewed after {seconds:.2} s");
        measured.hub_return_seconds.push(seconds);
        let moments = [moments::measure(&world).await?, handover::measure(&world).await?].concat();
        for (moment, seconds) in &moments {
            eprintln!("  {}: {seconds:.2} s", moment.as_str());
        }
        measured.moments.extend(moments);
        for rotation in outage::Rotation::ALL {
            let gap = rotation.measure(&world).await?;
            eprintln!(
                "  {}: longest gap {:.2} s at a period of {:.2} s",
                gap.rotation, gap.longest_seconds, gap.period_seconds
            );
            measured.rotations.push(gap);
        }
    }
    Ok(measured)
}
