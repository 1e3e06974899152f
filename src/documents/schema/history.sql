-- Who did what, and when. Each change of a document by a client has its row, which the transaction of the change writes; a status has
-- none. `kind` is '' in what concerns no document, `version` is null in what changes none, and `details` is JSON without
-- any sealed value. Times are those of the database.
create table towline_history (
  at timestamptz not null, number bigint generated always as identity, actor text not null, address text not null, via text not null,
  verb text not null, kind text collate "C" not null default '', namespace text collate "C" not null default '',
  name text collate "C" not null default '', id uuid, version bigint, details text not null,
  primary key (at, number));
create index on towline_history (kind, namespace, name, at, number);
create index on towline_history (namespace, at, number);
-- What operators read each day is not what was refused.
create index on towline_history (at, number) where kind <> '';
-- Refused requests are counted in memory and sent until the database has answered: it takes each record once.
create unique index towline_history_refused on towline_history (id) where verb = 'refused';
do $$
begin
  alter table towline_history alter column details set compression lz4;
exception when feature_not_supported or syntax_error then null;
end $$;

-- One step of deletion under the claim of compaction; the caller repeats it while 5,000 were deleted.
create function towline_expire(me text, my_token bigint, retention interval) returns bigint language sql as $$
with claim as materialized (
  select from towline_claim where name = 'compaction' and holder = me and token = my_token and until > clock_timestamp()),
 gone as (
  delete from towline_history where ctid = any (array (
    select ctid from towline_history where exists (select from claim) and at < now() - retention order by at, number limit 5000))
  returning 1)
select count(*) from gone
$$;

-- The newest record that goes where a namespace keeps so many; none if it has no more. Another record takes its place.
create function towline_forget_to(of_namespace text, most bigint, out at timestamptz, out number bigint) language sql stable as $$
  select at, number from (
    select at, number, lead(at) over (order by at desc, number desc) is not null as has_more from (
      select h.at, h.number from towline_history h where h.namespace = of_namespace
        order by h.at desc, h.number desc offset most - 1 limit 2) oldest) measured where has_more
$$;

-- One step of the deletion of the records of a namespace up to this one, under the claim of compaction; the caller repeats it while
-- 5,000 were deleted. In their place, at the time of the last one, is a record of kind `history` that says how many there were.
create function towline_forget(me text, my_token bigint, of_namespace text, last_at timestamptz, last_number bigint) returns bigint
language sql as $$
with claim as materialized (
  select from towline_claim where name = 'compaction' and holder = me and token = my_token and until > clock_timestamp()),
 gone as (
  delete from towline_history where ctid = any (array (
    select h.ctid from towline_history h where exists (select from claim) and h.namespace = of_namespace and h.at <= last_at
      -- What a step has said of the records before it is newer than these.
      and (h.at < last_at or h.number <= last_number or h.kind = 'history') order by h.at, h.number limit 5000))
  returning at, case when kind = 'history' then (details::jsonb->>'count')::bigint else 1 end as records),
 told as (
  insert into towline_history (at, actor, address, via, verb, kind, namespace, details)
    select max(at), '', '', 'database', 'forget', 'history', of_namespace, jsonb_build_object('count', sum(records))::text
    from gone having count(*) > 0)
select count(*) from gone
$$;
