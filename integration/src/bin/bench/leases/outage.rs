//! How long it is felt that the hub was away or that its credentials were exchanged.

use std::time::{Duration, Instant};

use futures::future::join;
use integration::{Error, Towline, eventually, users};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use serde::Serialize;

use super::world::{LONGEST_STEP, World, lease_name};

/// The period is a third of it.
const DURATION: Duration = Duration::from_secs(15);
/// `renew_interval` by default.
const PERIOD: Duration = Duration::from_secs(5);

/// From the hub's first answer after an outage of three periods to the first renewal.
pub(crate) async fn hub_return(world: &World) -> Result<f64, Error> {
    let _towline = start(world).await?;
    world.hub.kill_api_server().await?;
    let killed = Timestamp::now();
    tokio::time::sleep(PERIOD * 3).await;
    let (started, answered) = join(world.hub.start_api_server(), first_answer(world)).await;
    started?;
    let answered = answered?;
    let lease = eventually("the lease to be renewed", LONGEST_STEP, async || {
        let lease = read(&world.leases()).await.map_err(|error| error.to_string())?;
        if renewed(&lease).is_some_and(|when| when > killed) { Ok(lease) } else { Err(format!("{:?}", lease.spec)) }
    })
    .await?;
    let renewed_at = renewed(&lease).unwrap_or(killed);
    // One that came before our own question was answered was renewed at once.
    Ok(renewed_at.duration_since(answered).as_secs_f64().max(0.0))
}

async fn first_answer(world: &World) -> Result<Timestamp, Error> {
    let leases = world.leases();
    let begun = Instant::now();
    loop {
        match read(&leases).await {
            Ok(_) => return Ok(Timestamp::now()),
            Err(error) if begun.elapsed() > LONGEST_STEP => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// What happens to the credentials. In each of these, one of two is good at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    /// New ones come, the old ones stay good.
    Overlapping,
    /// New ones come, the old ones are revoked five seconds later.
    OldRevoked,
    /// New ones come that are not good; later they are.
    NewBroken,
}

/// The longest time between two renewals.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gap {
    pub(crate) rotation: &'static str,
    pub(crate) longest_seconds: f64,
    pub(crate) period_seconds: f64,
}

impl Rotation {
    pub(crate) const ALL: [Self; 3] = [Self::Overlapping, Self::OldRevoked, Self::NewBroken];

    fn as_str(self) -> &'static str {
        match self {
            Self::Overlapping => "rotated, old ones stay",
            Self::OldRevoked => "rotated, old ones revoked",
            Self::NewBroken => "rotated to broken ones, then mended",
        }
    }

    pub(crate) async fn measure(self, world: &World) -> Result<Gap, Error> {
        let towline = start(world).await?;
        let rotated = async {
            if self == Self::NewBroken {
                world.give_broken_credentials().await?;
                tokio::time::sleep(PERIOD * 2).await;
            }
            world.give_credentials(users::STRANGER).await?;
            if self == Self::OldRevoked {
                tokio::time::sleep(Duration::from_secs(5)).await;
                world.revoke(users::TOWLINE).await?;
            }
            tokio::time::sleep(PERIOD * 3).await;
            Ok::<_, Error>(())
        };
        let (rotated, moments) = renewals_during(&world.leases(), rotated).await;
        rotated?;
        drop(towline);
        world.grant(users::TOWLINE).await?;
        let gaps = moments.windows(2).map(|pair| match pair {
            [earlier, later] => later.duration_since(*earlier).as_secs_f64(),
            _ => 0.0,
        });
        let longest_seconds = gaps.fold(0.0, f64::max);
        Ok(Gap { rotation: self.as_str(), longest_seconds, period_seconds: PERIOD.as_secs_f64() })
    }
}

/// All values of `renewTime` that were seen while something else happens.
async fn renewals_during<T>(leases: &Api<Lease>, work: impl Future<Output = T>) -> (T, Vec<Timestamp>) {
    let mut moments: Vec<Timestamp> = Vec::new();
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return (done, moments),
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                let moment = read(leases).await.ok().as_ref().and_then(renewed);
                if let Some(moment) = moment && moments.last() != Some(&moment) {
                    moments.push(moment);
                }
            }
        }
    }
}

/// One lease that has been renewed once.
async fn start(world: &World) -> Result<Towline, Error> {
    world.delete_leases().await?;
    world.give_credentials(users::TOWLINE).await?;
    let towline = Towline::start(&world.config(1, DURATION)?, &[]).await?;
    world.wait_for_leases(1).await?;
    Ok(towline)
}

/// The lease that is measured.
pub(super) async fn read(leases: &Api<Lease>) -> Result<Lease, Error> {
    leases.get(&lease_name(0)).await.map_err(Error::kubernetes("read the lease"))
}

/// When it was renewed.
pub(super) fn renewed(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}
