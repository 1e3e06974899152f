-- The documents, their log, the terms of selectors, and claims. Only Towline writes to these tables.

create sequence towline_version as bigint;

-- Its single row: the last migration, the server that the versions come from, the version up to which the log is compacted, the last
-- migration that a release has to know, and the release that applied the last one.
create table towline_meta (
  one boolean primary key default true check (one), migration int not null, origin text not null, base bigint not null,
  oldest int not null default 0, release text not null default '');
insert into towline_meta values (true, 0, '', 0);

-- `data` holds a document's own fields that are not sealed. "No namespace" is ''. `kib` is what the document counts: in whole KiB, so that
-- most changes of a status change no sum.
create table towline_documents (
  kind text collate "C" not null, id uuid not null, namespace text collate "C" not null, name text collate "C" not null,
  labels jsonb not null, annotations jsonb not null, finalizers text[] not null, generation bigint not null, version bigint not null,
  created_at timestamptz not null, updated_at timestamptz not null, deleted_at timestamptz, data jsonb not null, status jsonb not null,
  sealed bytea, kib int not null default 0,
  primary key (kind, id), unique (kind, namespace, name)) partition by list (kind);
create table clusters partition of towline_documents for values in ('clusters') with (fillfactor = 70);
create table syncsets partition of towline_documents for values in ('syncsets') with (fillfactor = 70);
create table selectorsyncsets partition of towline_documents for values in ('selectorsyncsets') with (fillfactor = 70);
create table secrets partition of towline_documents for values in ('secrets') with (fillfactor = 70);
create table clustersyncs partition of towline_documents for values in ('clustersyncs') with (fillfactor = 70);
-- jsonb_ops serves @> and ?, jsonb_path_ops only @>.
create index on towline_documents using gin (labels) with (fastupdate = off);
create index on syncsets using gin ((data #> '{spec,clusterDeploymentRefs}') jsonb_path_ops) with (fastupdate = off);
create index on syncsets using gin ((data #> '{spec,secretMappings}') jsonb_path_ops) with (fastupdate = off);
create index on selectorsyncsets using gin ((data #> '{spec,secretMappings}') jsonb_path_ops) with (fastupdate = off);

-- One row a version. `document` is null in a deletion; `old_version` is the document's version before. `charged` is how many KiB count among
-- what the clients of the namespace change: what the version stores, here and in the document.
create table towline_log (
  version bigint primary key, at timestamptz not null, request uuid not null, kind text collate "C" not null, id uuid not null,
  namespace text collate "C" not null, name text collate "C" not null, labels jsonb not null, old_version bigint, document jsonb,
  charged int not null default 0);
-- The versions of a syncset that were not checked yet, however many others the log has.
create index towline_log_of_syncsets on towline_log (id, version) where kind in ('syncsets', 'selectorsyncsets');

-- The terms of selectors: `selector` is the id of the document that has it.
create table towline_terms (
  key text collate "C" not null, value text collate "C" not null, selector uuid not null, primary key (key, value, selector));
create index on towline_terms (selector);

-- Leader claims: each elects one process for a role. All roles have their row from the beginning, so that a renumbering of the
-- versions blocks also those that a transaction that it does not know of may have granted.
create table towline_claim (
  name text primary key, holder text, token bigint not null default 0, until timestamptz, cursor bigint not null default 0);
insert into towline_claim (name) values ('compaction'), ('relay'), ('dispatcher');

-- Work claims: each gives one cluster to one process. The namespace is '' where it is not known; by its index a claim passes over the
-- clusters of a namespace without reading their rows.
create table towline_work (
  cluster uuid primary key, ready_at timestamptz not null, urgent boolean not null default false, wanted bigint not null default 1,
  attempts int not null default 0, holder text, token bigint not null default 0, until timestamptz,
  namespace text collate "C" not null default '') with (fillfactor = 50);
create index on towline_work (ready_at);
create index on towline_work (ready_at) where urgent;
create index on towline_work (namespace, urgent, ready_at);

-- How much each namespace has: documents, without the ClusterSyncs that come and go with their clusters, and the KiB of all, and of the
-- revisions of rollouts. Whoever writes to it holds the lock of `towline_write`. A dump has tables in the order of their names: this one is
-- restored before the row of `towline_meta`, so before anybody counts.
create table towline_counts (
  namespace text collate "C" primary key, documents bigint not null, kib bigint not null) with (fillfactor = 50);

-- A sealed field does not get smaller. Compressing the other large values costs a fifth of a write, and less with LZ4, which servers
-- have from version 14 on if they were built with it.
do $$
declare place record;
begin
  for place in select a.attrelid::regclass as name, a.attname as field, a.atttypid from pg_attribute a
    where (a.attrelid in ('towline_documents'::regclass, 'towline_log'::regclass)
      or a.attrelid in (select inhrelid from pg_inherits where inhparent = 'towline_documents'::regclass))
    and a.atttypid in ('jsonb'::regtype, 'bytea'::regtype) loop
    if place.atttypid = 'bytea'::regtype then
      execute format('alter table %s alter column %I set storage external', place.name, place.field);
    else
      begin
        execute format('alter table %s alter column %I set compression lz4', place.name, place.field);
      exception when feature_not_supported or syntax_error then null;
      end;
    end if;
  end loop;
end $$;
