//! The statements of the claims, and the connection that they have to themselves.

use tokio::time::timeout;

use super::lifetime::Lifetime;
use super::role::{Holder, Role};
use crate::db::{Connection, Database, Error, Text, Type, column};

/// Grants what nobody holds. A row that somebody else is changing is left to them. Nothing is granted while versions of another
/// origin are not renumbered: the database may have lost a grant.
///
/// A role whose row is missing gets one: the table was restored without its data, and nothing is known of its grants. So it is blocked
/// for as long as one of them may last, and its tokens continue above all that there can have been, since a role is granted less
/// than once a microsecond. Before the restore has made the primary key, the rows may be still to come, and would collide.
const LEAD: &str = "with free as materialized (select name from towline_claim where name = any($2) and (until is null or until < now()) \
     and (select origin = towline_origin() from towline_meta) order by name for no key update skip locked), \
     put_back as (insert into towline_claim (name, token, until) \
     select role, (extract(epoch from now()) * 1000000)::bigint, now() + $3 * interval '1 s' from unnest($2) role \
     where not exists (select from towline_claim where name = role) and (select origin = towline_origin() from towline_meta) \
     and exists (select from pg_catalog.pg_index where indrelid = 'towline_claim'::regclass and indisprimary) \
     order by role on conflict do nothing) \
     update towline_claim c set holder = $1, token = c.token + 1, until = now() + $3 * interval '1 s' from free where c.name = free.name \
     returning c.name, c.token, c.cursor";
/// Renews and returns only claims that have not ended: an ended one is never revived.
const RENEW_ROLES: &str = "with mine as materialized (select c.name from towline_claim c \
     join unnest($2::text[], $3::bigint[]) m(name, token) using (name, token) \
     where c.holder = $1 and c.until > now() order by c.name for no key update of c) \
     update towline_claim c set until = now() + $4 * interval '1 s' from mine where c.name = mine.name returning c.name";
const HAND_BACK_ROLES: &str = "with mine as materialized (select c.name from towline_claim c \
     join unnest($2::text[], $3::bigint[]) m(name, token) using (name, token) \
     where c.holder = $1 and c.until > now() order by c.name for no key update of c) \
     update towline_claim c set until = now() from mine where c.name = mine.name";
/// As for roles. Rows are locked in order of the cluster, as by requests.
const RENEW_WORK: &str = "with mine as materialized (select w.cluster from towline_work w \
     join unnest($2::text[]::uuid[], $3::bigint[]) m(cluster, token) using (cluster, token) \
     where w.holder = $1 and w.until > now() order by w.cluster for no key update of w) \
     update towline_work w set until = now() + $4 * interval '1 s' from mine where w.cluster = mine.cluster returning w.cluster::text";
/// As if the rows had not been claimed: the passes came to no end, but through no fault of the clusters.
const HAND_BACK_WORK: &str = "with mine as materialized (select w.cluster from towline_work w \
     join unnest($2::text[]::uuid[], $3::bigint[]) m(cluster, token) using (cluster, token) \
     where w.holder = $1 order by w.cluster for no key update of w) \
     update towline_work w set holder = null, until = null, attempts = greatest(w.attempts - 1, 0), ready_at = now() \
     from mine where w.cluster = mine.cluster";

/// A statement on claims that are held: their names or clusters, with their tokens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Statement {
    RenewRoles,
    HandBackRoles,
    RenewWork,
    HandBackWork,
}

pub(super) struct Granted {
    pub(super) name: String,
    pub(super) token: i64,
    pub(super) cursor: i64,
}

/// The connection of the claims. It connects on first use, and again when the connection was lost.
pub(super) struct Link<'d> {
    database: &'d Database,
    holder: &'d Holder,
    lifetime: Lifetime,
    connection: Option<Connection>,
}

impl Statement {
    fn name(self) -> &'static str {
        match self {
            Self::RenewRoles => "renew_claims",
            Self::HandBackRoles => "hand_back_claims",
            Self::RenewWork => "renew_work",
            Self::HandBackWork => "hand_back_work",
        }
    }

    /// A statement that is sent once, at shutdown, is not prepared.
    fn text(self) -> Text<'static> {
        match self {
            Self::RenewRoles => Text::Prepared(RENEW_ROLES),
            Self::HandBackRoles => Text::Once(HAND_BACK_ROLES),
            Self::RenewWork => Text::Prepared(RENEW_WORK),
            Self::HandBackWork => Text::Once(HAND_BACK_WORK),
        }
    }
}

impl<'d> Link<'d> {
    /// One that is not connected.
    pub(super) fn new(database: &'d Database, holder: &'d Holder, lifetime: Lifetime) -> Self {
        Self { database, holder, lifetime, connection: None }
    }

    /// Closes the connection: an answer may still come, and the next statement would queue behind it.
    pub(super) fn close(&mut self) {
        self.connection = None;
    }

    /// Asks for roles.
    pub(super) async fn lead(&mut self, roles: &[Role]) -> Result<Vec<Granted>, Error> {
        const QUERY: &str = "lead";
        let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
        let (holder, seconds) = (self.holder.as_str(), self.lifetime.seconds());
        let params = [(&holder as _, Type::TEXT), (&names as _, Type::TEXT_ARRAY), (&seconds as _, Type::FLOAT8)];
        let rows = self.connection().await?.all(QUERY, LEAD, &params).await?;
        let granted = |row| {
            Ok(Granted { name: column(QUERY, row, 0)?, token: column(QUERY, row, 1)?, cursor: column(QUERY, row, 2)? })
        };
        rows.iter().map(granted).collect()
    }

    /// Runs a statement on claims, and returns the names that it returns.
    pub(super) async fn on_held(
        &mut self,
        statement: Statement,
        names: &[String],
        tokens: &[i64],
    ) -> Result<Vec<String>, Error> {
        let within = self.lifetime.renewed_within();
        let answered = timeout(within, self.run(statement, names, tokens)).await;
        answered.unwrap_or_else(|_| {
            self.close();
            Err(Error::Silent { query: statement.name(), within })
        })
    }

    async fn run(&mut self, statement: Statement, names: &[String], tokens: &[i64]) -> Result<Vec<String>, Error> {
        let query = statement.name();
        let (holder, seconds) = (self.holder.as_str(), self.lifetime.seconds());
        let mut params =
            vec![(&holder as _, Type::TEXT), (&names as _, Type::TEXT_ARRAY), (&tokens as _, Type::INT8_ARRAY)];
        if matches!(statement, Statement::RenewRoles | Statement::RenewWork) {
            params.push((&seconds as _, Type::FLOAT8));
        }
        let rows = self.connection().await?.all(query, statement.text(), &params).await?;
        rows.iter().map(|row| column(query, row, 0)).collect()
    }

    /// The connection, a new one if the last has ended.
    async fn connection(&mut self) -> Result<&mut Connection, Error> {
        if let Some(usable) = self.connection.take().filter(|connection| !connection.is_closed()) {
            return Ok(self.connection.insert(usable));
        }
        let mut connection = self.database.connect("claims").await?;
        let limit = self.lifetime.locked_out_for().as_millis();
        connection.run("limit_locks", &format!("set lock_timeout = {limit}")).await?;
        Ok(self.connection.insert(connection))
    }
}
