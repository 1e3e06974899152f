//! The attendant of a section: wakes pairs that wait for something no watch of theirs tells.
//!
//! It also sends what a run may not send itself: a run that waited for room in its own dispatcher's mailbox would wait for
//! itself. It follows the availability of both clusters and the permissions that were given, and asks for everything that was
//! parked; it also looks now and then for secrets that are due to be written again. It owns nothing, and what it requests is
//! taken out only afterwards, so a restart loses nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::Section;
use crate::actor::{BoxError, Scope};

/// How often due secrets are looked for: a fraction of the refresh interval, within these bounds.
const LOOK_FOR_SECRETS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// How often pairs are looked for whose fields that a server did not keep are due to be written again.
const LOOK_FOR_UNKEPT: Duration = Duration::from_mins(1);

/// What an API server could not tell is asked for again after this.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// While something is left behind, the section looks for it again after this, to see when it is gone.
const LOOK_FOR_LEFT: Duration = Duration::from_hours(1);

/// Returns whether something is still to be asked for.
async fn request_asked(section: &Section) -> bool {
    match section.request_asked().await {
        Ok(()) => false,
        Err(error) => {
            tracing::debug!(section = %section.name(), %error, "failed to look for what the section does not see, retrying");
            true
        }
    }
}

/// The body of the actor.
pub async fn attend(section: Arc<Section>, scope: Scope) -> Result<(), BoxError> {
    let (remote, local) = (section.remote_cluster(), section.local_cluster());
    let mut remote_availability = remote.availability();
    let mut local_availability = local.availability();
    let (mut remote_identity, mut local_identity) = (remote.identities(), local.identities());
    let mut remote_permissions = remote.permissions_given();
    let mut local_permissions = local.permissions_given();
    let refresh = section.config().secret_refresh.filter(|_| !section.config().secret_names.is_empty());
    let period =
        refresh.map_or(LOOK_FOR_SECRETS.1, |interval| (interval / 10).clamp(LOOK_FOR_SECRETS.0, LOOK_FOR_SECRETS.1));
    let mut look = tokio::time::interval(period);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look_for_unkept = tokio::time::interval(LOOK_FOR_UNKEPT);
    look_for_unkept.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look_for_left = tokio::time::interval_at(Instant::now() + LOOK_FOR_LEFT, LOOK_FOR_LEFT);
    look_for_left.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // What was asked for and parked before this looked, or while it was away.
    let mut unanswered = request_asked(&section).await;
    let mut may_go_on = true;
    loop {
        if std::mem::take(&mut may_go_on) && section.is_available() {
            section.unpark().await;
        }
        tokio::select! {
            () = scope.draining() => return Ok(()),
            Ok(()) = remote_availability.changed() => may_go_on = true,
            Ok(()) = local_availability.changed() => may_go_on = true,
            Ok(()) = remote_identity.changed() => may_go_on = true,
            Ok(()) = local_identity.changed() => may_go_on = true,
            Ok(()) = remote_permissions.changed() => may_go_on = true,
            Ok(()) = local_permissions.changed() => may_go_on = true,
            () = section.asked() => unanswered = request_asked(&section).await,
            () = tokio::time::sleep(ASK_AGAIN), if unanswered => unanswered = request_asked(&section).await,
            _ = look_for_unkept.tick() => {
                section.forget_left_fields();
                section.request_due_again().await;
            }
            _ = look_for_left.tick(), if section.may_look_for_left_again() => section.look_for_left_again(),
            _ = look.tick(), if refresh.is_some() => section.request_due_secrets().await,
        }
    }
}
