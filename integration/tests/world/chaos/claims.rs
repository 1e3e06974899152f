//! Which process was allowed to work on which cluster, and when: every change of a claim as a trigger in the database noted it.

use std::collections::BTreeMap;

use integration::postgres::{self, ADMIN};

use crate::chaos::endpoint::Moment;

/// Of what is noted, a restore leaves everything as it is.
const TRIGGER: &str = "\
create schema if not exists noted;
create table noted.claims (number bigserial primary key, at timestamptz not null, cluster uuid not null, holder text, token bigint, until timestamptz);
create function noted.note_claim() returns trigger language plpgsql security definer as $$
begin
  if tg_op = 'DELETE' then
    insert into noted.claims (at, cluster) values (clock_timestamp(), old.cluster);
  elsif tg_op = 'INSERT' or (new.holder, new.token, new.until) is distinct from (old.holder, old.token, old.until) then
    insert into noted.claims (at, cluster, holder, token, until)
      values (clock_timestamp(), new.cluster, new.holder, new.token, new.until);
  end if;
  return null;
end $$;
create trigger note_claim after insert or update or delete on towline_work for each row execute function noted.note_claim();";

/// A claim from its grant to its end.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) holder: String,
    pub(crate) token: i64,
    pub(crate) granted: Moment,
    /// When it was given back, or had run out.
    pub(crate) ended: Moment,
}

/// The claims on each cluster, in order.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeMap<String, Vec<Claim>>);

impl Claims {
    /// From now on claims are noted.
    pub(crate) async fn note(database: &postgres::Database) {
        database.client(ADMIN).await.unwrap().batch_execute(TRIGGER).await.unwrap();
    }

    /// All so far.
    pub(crate) async fn read(database: &postgres::Database) -> Self {
        let text = "select cluster::text, holder, coalesce(token, 0), (extract(epoch from at) * 1e6)::bigint, \
             coalesce((extract(epoch from until) * 1e6)::bigint, 0) from noted.claims order by number";
        let rows = database.client(ADMIN).await.unwrap().query(text, &[]).await.unwrap();
        let mut claims: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
        for row in rows {
            let (cluster, holder, token): (String, Option<String>, i64) = (row.get(0), row.get(1), row.get(2));
            let (at, until): (Moment, Moment) = (row.get(3), row.get(4));
            let of = claims.entry(cluster).or_default();
            match (holder, of.last_mut()) {
                // Renewed.
                (Some(holder), Some(last)) if last.holder == holder && last.token == token => last.ended = until,
                // The database was renumbered: whoever had a claim may not know yet, and until it has run out there is no other one.
                (None, _) if until > at => {}
                (holder, last) => {
                    if let Some(last) = last {
                        last.ended = last.ended.min(at);
                    }
                    of.extend(holder.map(|holder| Claim { holder, token, granted: at, ended: until }));
                }
            }
        }
        Self(claims)
    }

    /// The claim of a holder on a cluster at a moment.
    pub(crate) fn of(&self, cluster: &str, holder: &str, at: Moment) -> Option<&Claim> {
        let all = self.0.get(cluster).into_iter().flatten();
        all.filter(|claim| claim.holder == holder).find(|claim| (claim.granted..=claim.ended).contains(&at))
    }

    /// How often a cluster went from one holder to another one.
    pub(crate) fn takeovers(&self) -> usize {
        let of = |claims: &Vec<Claim>| claims.windows(2).filter(|pair| pair[0].holder != pair[1].holder).count();
        self.0.values().map(of).sum()
    }
}
