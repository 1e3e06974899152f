//! Telling workers which clusters have work.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation};
use uuid::Uuid;

use super::broker::Opens;
use super::message::PERSISTENT;
use super::topology::{self, DEAD_WORK, URGENT, WORK};
use crate::amqp::{Error, Link};

/// A channel for it, on which the broker confirms. Its connection does nothing else: the broker may block it.
pub(in crate::documents) struct Announcements(Channel);

/// How many messages wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::documents) struct Waiting {
    /// Announcements of work.
    pub(in crate::documents) work: u32,
    /// Dead letters.
    pub(in crate::documents) dead: u32,
}

impl Opens for Announcements {
    async fn open(link: &Link) -> Result<Self, Error> {
        let channel = link.channel().await?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirms.map_err(Error::of("ask for confirms"))?;
        Ok(Self(channel))
    }
}

impl Announcements {
    /// What waits in the queues.
    pub(in crate::documents) async fn waiting(&self) -> Result<Waiting, Error> {
        let dead = topology::waiting(&self.0, DEAD_WORK).await?;
        let (work, urgent) = (topology::waiting(&self.0, WORK).await?, topology::waiting(&self.0, URGENT).await?);
        Ok(Waiting { work: work.saturating_add(urgent), dead })
    }

    /// Publishes the ids of clusters, each with whether it is urgent, waits for the confirms of all, and returns those that a queue has
    /// taken.
    pub(in crate::documents) async fn publish(&self, clusters: &[(Uuid, bool)]) -> Result<Vec<Uuid>, Error> {
        let properties =
            BasicProperties::default().with_content_type("text/plain".into()).with_delivery_mode(PERSISTENT);
        // A queue that somebody has deleted would take the message silently.
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(clusters.len());
        for (cluster, urgent) in clusters {
            let (queue, body) = (if *urgent { URGENT } else { WORK }, cluster.to_string());
            let sent =
                self.0.basic_publish("".into(), queue.into(), options, body.as_bytes(), properties.clone()).await;
            confirms.push((*cluster, sent.map_err(Error::of("announce work"))?));
        }
        let (mut taken, mut is_missing) = (Vec::with_capacity(confirms.len()), false);
        for (cluster, confirm) in confirms {
            match confirm.await.map_err(Error::of("announce work"))? {
                Confirmation::Ack(None) => taken.push(cluster),
                Confirmation::Ack(Some(_)) => is_missing = true,
                Confirmation::Nack(_) | Confirmation::NotRequested => {}
            }
        }
        if is_missing {
            topology::declare(&self.0).await?;
            // Which of them came back is not certain: a returned message is handed out with any of the confirms. All are announced again.
            taken.clear();
        }
        Ok(taken)
    }
}
