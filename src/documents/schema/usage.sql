-- How much each namespace has.
select pg_advisory_xact_lock('towline_log'::regclass::bigint);

-- What a document counts, in KiB: in whole ones, so that most changes of a status change no sum.
alter table towline_documents add column kib int;

-- Documents, without the ClusterSyncs that come and go with their clusters, and the KiB of all. Whoever writes to it holds the lock of
-- `towline_write`. A dump has tables in the order of their names: this one is restored before the row of `towline_meta`, so before anybody
-- counts.
create table towline_counts (
  namespace text collate "C" primary key, documents bigint not null, kib bigint not null) with (fillfactor = 50);

-- The KiB of these columns, whether they are compressed or not, and of a sealed field with so many bytes.
create function towline_kib(labels jsonb, annotations jsonb, finalizers text[], data jsonb, status jsonb, sealed int) returns int
language sql stable as $$
  -- What is concatenated is not compressed.
  select (pg_column_size(labels || '{}') + pg_column_size(annotations || '{}') + octet_length(finalizers::text)
    + pg_column_size(data || '{}') + pg_column_size(status || '{}') + coalesce(sealed, 0) + 1023) / 1024
$$;

alter type towline_present add attribute kib int, add attribute sealed int;
create or replace function towline_look(change jsonb) returns towline_present language plpgsql set plan_cache_mode = force_custom_plan as $$
declare present towline_present;
begin
  select version, id, created_at, deleted_at, coalesce(kib, 0), octet_length(sealed) into present from towline_documents
    where kind = change->>'kind' and namespace = change->>'namespace' and name = change->>'name';
  return present;
end $$;

-- What a namespace has: [documents, KiB].
create function towline_used(of_namespace text) returns jsonb language plpgsql set plan_cache_mode = force_custom_plan as $$
declare used jsonb;
begin
  select jsonb_build_array(documents, kib) into used from towline_counts where namespace = of_namespace;
  return coalesce(used, '[0, 0]');
end $$;

-- Notes what namespaces have: {namespace: [documents, KiB], …}.
create function towline_use(sums jsonb) returns void language plpgsql set plan_cache_mode = force_custom_plan as $$
begin
  insert into towline_counts as u select key, (value->>0)::bigint, (value->>1)::bigint from jsonb_each(sums)
    on conflict (namespace) do update set documents = excluded.documents, kib = excluded.kib;
  if exists (select from jsonb_each(sums) where value = '[0, 0]') then
    delete from towline_counts where namespace in (select key from jsonb_each(sums) where value = '[0, 0]');
  end if;
end $$;

-- Counts anew what all namespaces have.
create function towline_recount() returns void language plpgsql as $$
begin
  perform pg_advisory_xact_lock('towline_log'::regclass::bigint);
  delete from towline_counts;
  insert into towline_counts select namespace, count(*) filter (where kind <> 'clustersyncs'), coalesce(sum(kib), 0)
    from towline_documents group by namespace;
end $$;
