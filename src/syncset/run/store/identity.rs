//! Which document owns a cluster.
//!
//! Several documents of a namespace may lead to one cluster, by the UID of its `kube-system`. The one that was found to lead there first
//! owns it, until its document is gone or leads elsewhere. A server can claim any UID: of documents in other namespaces nothing is
//! concluded from it.

use std::time::Duration;

use uuid::Uuid;

use super::{PassStore, StoreError};
use crate::db::{Text, Type, column};
use crate::documents::{WorkClaim, WorkQueue};

/// Two documents that find out at once that they lead to one cluster would not see each other. The lock is that of namespace and identity.
/// A process that stops before the end must not hold it for longer than others wait.
const LOCK: &str = "select set_config('idle_in_transaction_session_timeout', '3s', true), \
     pg_advisory_xact_lock('towline_identity'::regclass::int, hashtext(c.namespace || '/' || $2::text)) \
     from clusters c where c.kind = 'clusters' and c.id = $1::text::uuid";
/// Longest wait for that, and for what follows.
const WITHIN: Duration = Duration::from_secs(10);
/// Notes the identity in $4 under the claim in $1 to $3; no row if that has ended. Returns the owner of the cluster, if that is another
/// document, and the documents that led with this one to the cluster where it led before: one of them owns that now. Numbers are given
/// under the lock, so the smallest one was first.
const OWN: &str = "with held as materialized (select w.cluster, c.namespace from towline_work w \
       join clusters c on c.kind = 'clusters' and c.id = w.cluster \
       where w.cluster = $1::text::uuid and w.holder = $2 and w.token = $3 and w.until > clock_timestamp() for key share of w), \
     before as materialized (select i.* from held join towline_identity i on i.cluster = held.cluster), \
     noted as (insert into towline_identity as i (cluster, namespace, identity) select cluster, namespace, $4::text from held \
       on conflict (cluster) do update set identity = excluded.identity, since = default where i.identity <> excluded.identity) \
     select (select o.name from towline_identity f join clusters o on o.kind = 'clusters' and o.id = f.cluster \
         where f.namespace = held.namespace and f.identity = $4::text and f.cluster <> held.cluster \
           and not exists (select from before b where b.identity = $4::text and b.since < f.since) order by f.since limit 1), \
       array(select f.cluster::text from before b join towline_identity f on f.namespace = b.namespace and f.identity = b.identity \
         and f.cluster <> b.cluster where b.identity <> $4::text) \
     from held";

impl PassStore {
    /// Notes that the document of this claim leads to the cluster of this identity. Returns the name of the document that owns the cluster,
    /// if that is another one. If it led elsewhere before, the documents that waited there are asked for.
    pub async fn own(&self, claim: &WorkClaim, identity: &str) -> Result<Option<String>, StoreError> {
        const QUERY: &str = "own_cluster";
        let cluster = claim.cluster.to_string();
        // As all texts of clusters are stored.
        let identity = identity.replace('\0', "\u{fffd}");
        let lock = [(&cluster as _, Type::TEXT), (&identity as _, Type::TEXT)];
        let params = [
            (&cluster as _, Type::TEXT),
            (&claim.holder as _, Type::TEXT),
            (&claim.token as _, Type::INT8),
            (&identity as _, Type::TEXT),
        ];
        let _slot = self.slot().await;
        let mut transaction = self.database.begin("own", WITHIN).await?;
        transaction.execute("lock_identity", Text::Prepared(LOCK), &lock).await?;
        let rows = transaction.all(QUERY, Text::Prepared(OWN), &params).await?;
        let row = rows.first().ok_or(StoreError::ClaimLost)?;
        let owner: Option<String> = column(QUERY, row, 0)?;
        let waiting: Vec<&str> = column(QUERY, row, 1)?;
        // The database prints valid ids.
        let waiting: Vec<Uuid> = waiting.into_iter().filter_map(|id| id.parse().ok()).collect();
        if !waiting.is_empty() {
            WorkQueue::ask_within(&mut transaction, &waiting, false).await?;
        }
        transaction.commit().await?;
        Ok(owner)
    }
}
