//! From something that happens to what it has to bring about: a pod that changes its mind, a Secret that is rotated.

use std::time::Duration;

use integration::{Error, Filter, Towline, eventually, users};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::handover;
use super::outage::{read, renewed};
use super::world::{LONGEST_STEP, POD, SECRET_NAMESPACE, World};

/// Runs out within no measurement.
const DURATION: Duration = Duration::from_secs(15);
/// So often that it is seen when renewals end, and that one under way is never long ago.
const PERIOD: Duration = Duration::from_millis(100);
/// No renewal for so long: they have ended.
const SILENCE: Duration = Duration::from_secs(3);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Moment {
    /// The pod is not ready, up to the last renewal.
    Stops,
    /// The pod is ready again, up to the first renewal.
    Resumes,
    /// The Secret has other credentials, up to the first renewal with them.
    Rotated,
    /// One of two replicas is asked to end, up to the other one running all sections.
    Terminated,
    /// One of two replicas is killed, up to the other one running all sections.
    Killed,
}

impl Moment {
    /// In the order of the table.
    pub(crate) const ALL: [Self; 5] = [Self::Stops, Self::Resumes, Self::Rotated, Self::Terminated, Self::Killed];

    /// How it is called.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Stops => "pod not ready, until the last renewal",
            Self::Resumes => "pod ready, until it is renewed",
            Self::Rotated => "secret rotated, until renewed with it",
            Self::Terminated => "SIGTERM, until its sections run elsewhere",
            Self::Killed => "SIGKILL, until its sections run elsewhere",
        }
    }

    /// What is promised.
    pub(crate) fn at_most(self) -> Duration {
        let second = Duration::from_secs(1);
        match self {
            Self::Stops | Self::Resumes | Self::Rotated | Self::Terminated => second,
            Self::Killed => handover::LEASE + second * 2,
        }
    }
}

/// The three of one lease.
pub(crate) async fn measure(world: &World) -> Result<Vec<(Moment, f64)>, Error> {
    world.delete_leases().await?;
    world.give_credentials(users::TOWLINE).await?;
    world.turn_pod(true).await?;
    let gate = format!(
        "renew_interval = \"{}ms\"\npod_name = \"{POD}\"\npod_namespace = \"{SECRET_NAMESPACE}\"\n",
        PERIOD.as_millis()
    );
    let _towline = Towline::start(&(world.config(1, DURATION)? + &gate), &[]).await?;
    renewed_after(world, Timestamp::UNIX_EPOCH).await?;

    let turned = Timestamp::now();
    world.turn_pod(false).await?;
    let last = last_renewal(world).await?;
    let stops = last.duration_since(turned).as_secs_f64().max(0.0);

    let turned = Timestamp::now();
    world.turn_pod(true).await?;
    let resumes = renewed_after(world, turned).await?.duration_since(turned).as_secs_f64();

    let mark = world.hub.audit()?.mark().await?;
    let rotated_at = Timestamp::now();
    world.give_credentials(users::STRANGER).await?;
    let first = eventually("a renewal with the new credentials", LONGEST_STEP, async || {
        let filter = Filter::since(mark).user(users::STRANGER).verb("patch").resource("leases");
        let audit = world.hub.audit().map_err(|error| error.to_string())?;
        let renewals = audit.records(&filter).await.map_err(|error| error.to_string())?;
        renewals.first().map(|record| record.received.clone()).ok_or_else(|| "none".to_owned())
    })
    .await?;
    let first: Timestamp = first.parse().unwrap_or_else(|_| Timestamp::now());
    let rotated = first.duration_since(rotated_at).as_secs_f64();
    Ok(vec![(Moment::Stops, stops), (Moment::Resumes, resumes), (Moment::Rotated, rotated)])
}

async fn renewed_after(world: &World, after: Timestamp) -> Result<Timestamp, Error> {
    eventually("the lease to be renewed", LONGEST_STEP, async || {
        let lease = read(&world.leases()).await.map_err(|error| error.to_string())?;
        renewed(&lease).filter(|when| *when > after).ok_or_else(|| format!("{:?}", lease.spec))
    })
    .await
}

/// When the renewals ended.
async fn last_renewal(world: &World) -> Result<Timestamp, Error> {
    eventually("the renewals to end", LONGEST_STEP, async || {
        let lease = read(&world.leases()).await.map_err(|error| error.to_string())?;
        let last = renewed(&lease).ok_or("never renewed")?;
        let silent = Timestamp::now().duration_since(last).unsigned_abs();
        if silent > SILENCE { Ok(last) } else { Err(format!("renewed {silent:?} ago")) }
    })
    .await
}
