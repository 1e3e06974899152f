-- One step of compaction under a claim; the caller repeats it while `scanned` is 5,000. All of it becomes visible at once.
--
-- It walks the log upwards from its own cursor, raises `base`, and deletes the predecessors of the rows that it passes and the
-- deletions among them. It stops before the newest 1,000 rows, rows younger than `retention`, and, for 24 h, rows that the relay or
-- the dispatcher has not read. A cursor of 0 belongs to a role that has read nothing: it begins with the documents, not with the log.
create function towline_compact(me text, my_token bigint, retention interval) returns table (scanned bigint, removed bigint)
language sql as $$
with claim as materialized (
  select cursor from towline_claim where name = 'compaction' and holder = me and token = my_token and until > clock_timestamp() for update),
 floor as materialized (
  select min(cursor) as version from towline_claim where name in ('relay', 'dispatcher') and cursor > 0
    and until > now() - interval '24 h'),
 newest as materialized (select version from towline_log order by version desc offset 999 limit 1),
 seen as materialized (
  select l.version, l.old_version, l.document is null as gone,
    l.at < now() - retention and (l.at < now() - interval '24 h' or l.version <= coalesce(floor.version, l.version)) as old
  from towline_log l, claim, floor, newest where l.version > claim.cursor and l.version <= newest.version order by l.version limit 5000),
 step as materialized (
  select * from seen where version < coalesce((select min(version) from seen where not old), 9223372036854775807)),
 based as (
  update towline_meta set base = greatest(base, (select max(version) from step)) where exists (select from step) returning base),
 noted as (
  update towline_claim set cursor = (select max(version) from step) where name = 'compaction' and exists (select from step)),
 gone as (
  delete from towline_log where version in (select old_version from step union all select version from step where gone) returning 1)
select (select count(*) from step), (select count(*) from gone)
$$;
