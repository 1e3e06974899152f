-- Rollouts: while a syncset has `spec.rollout`, each cluster applies the revision to which it is pinned, and not the document's content.
--
-- `towline_write` changes these tables under its lock. So whoever holds a row of them must never wait for that lock.

-- Each content that a syncset with a rollout had, with the generation and the version that the document had with it, and the KiB that it counts.
-- Contents are compared under the log's lock: first by `hash`, so that none is read that is another one.
create table towline_revision (
  syncset uuid not null, revision int not null, generation bigint not null, version bigint not null, made timestamptz not null,
  content jsonb not null, kib int not null, hash bigint not null generated always as (jsonb_hash_extended(content, 0)) stored,
  primary key (syncset, revision));
-- A changed Secret concerns the clusters that may have a revision that maps it.
create index on towline_revision using gin ((content->'secretMappings') jsonb_path_ops) with (fastupdate = off);
do $$
begin
  alter table towline_revision alter column content set compression lz4;
exception when feature_not_supported or syntax_error then null;
end $$;

-- `newest` is the revision that the document has, and `edited` counts its changes; `started` is the change with which the present rollout
-- began, so a new one has to begin where it is smaller. Clusters without a turn have `stable`; where it is null, they have nothing.
-- `goal` is where the present rollout leads. `clock`, `settled` and `checking` are milliseconds of the rollout's own clock.
create table towline_rollout (
  syncset uuid primary key, newest int not null, edited bigint not null, started bigint not null, number bigint not null default 0,
  stable int, goal int not null, state text not null, reason text not null default '', message text not null default '',
  wave int not null default 0, clock bigint not null default 0, settled bigint, checking bigint, promoted int not null default 0,
  failures int not null default 0, tolerated int not null default 0, guarded boolean not null default false,
  since timestamptz not null, actor text not null default '') with (fillfactor = 70);

-- Whether the rollout of an edit has yet to begin. Whoever has paused one is not overtaken by an edit.
create function towline_begins(r towline_rollout) returns boolean language sql immutable as $$
  select r.started < r.edited and (r.state, r.reason) not in (('Stopped', 'Paused'), ('Stopped', 'Restored'))
$$;

-- Clusters that were pinned to a revision, by which rollout of the syncset, in which of its waves, and when by its clock and by the server's.
-- `before` is what a cluster had before that, as long as it may have that again; where it is null, that is the stable revision.
create table towline_turn (
  syncset uuid not null, cluster uuid not null, revision int not null, number bigint not null, wave int not null,
  released bigint not null, done boolean not null default false, read_before timestamptz,
  released_at timestamptz not null default clock_timestamp(), before int, primary key (syncset, cluster)) with (fillfactor = 70);
create index on towline_turn (cluster);

-- Whether something of a revision may have come to a cluster whose result has these inputs and this generation: a pass has begun to write
-- (`ResultRow::UNFINISHED`), or has ended with it. What failed before a turn has other inputs since its release.
create function towline_has_begun(inputs bytea, generation bigint, revision_generation bigint) returns boolean language sql immutable as $$
  select coalesce(inputs = decode(repeat('00', 32), 'hex')
    or (generation = revision_generation and inputs <> decode(repeat('ff', 32), 'hex')), false)
$$;

-- Gives clusters what they had before their turns if nothing of these has come to them: some, or all where that is null. A pass that is under
-- way may have read what they were pinned to, so whoever calls this asks for those that it returns.
create function towline_take_back(of_syncset uuid, of_clusters uuid[]) returns setof uuid language plpgsql
set plan_cache_mode = force_custom_plan as $$
begin
  return query with back as materialized (
      select t.cluster, t.before, coalesce(t.before = r.stable, t.before is null) as is_stable
      from towline_turn t join towline_rollout r on r.syncset = t.syncset
        left join towline_revision v on v.syncset = t.syncset and v.revision = t.revision
        left join lateral (select a.inputs, a.generation from towline_result a where a.cluster = t.cluster and a.syncset = t.syncset offset 0) a
          on true
      where t.syncset = of_syncset and (of_clusters is null or t.cluster = any (of_clusters)) and t.number > 0 and not t.done
        and t.before is distinct from t.revision and not towline_has_begun(a.inputs, a.generation, v.generation)),
    dropped as (delete from towline_turn t using back b where t.syncset = of_syncset and t.cluster = b.cluster and b.is_stable),
    kept as (update towline_turn t set revision = b.before, before = null, number = 0 from back b
      where t.syncset = of_syncset and t.cluster = b.cluster and not b.is_stable)
    select b.cluster from back b;
end $$;

-- What a rollout moves: a `spec` without which clusters it is for. For whom a syncset is, the document says alone. But the secrets that it
-- copies it copies only to clusters in namespaces that were named beside them.
create function towline_content(spec jsonb) returns jsonb language sql immutable as $$
  select spec - '{clusterDeploymentRefs,clusterDeploymentSelector,clusterNamespaces,rollout}'::text[]
    || case when spec ? 'clusterNamespaces' and spec->'secretMappings' <> '[]'
      then jsonb_build_object('secretNamespaces', spec->'clusterNamespaces') else '{}' end
$$;

-- The KiB of a content, uncompressed.
create function towline_content_kib(content jsonb) returns int language sql stable as $$
  select (pg_column_size(content || '{}') + 1023) / 1024
$$;

-- The KiB of a syncset's revisions.
create function towline_revised(of_syncset uuid) returns int language plpgsql set plan_cache_mode = force_custom_plan as $$
begin
  return coalesce((select sum(kib) from towline_revision where syncset = of_syncset), 0);
end $$;

-- The revisions of a syncset that no cluster has, or gets if `newest` is the newest one.
create function towline_unused(of_syncset uuid, newest int) returns table (revision int, kib int) language sql stable as $$
  select v.revision, v.kib from towline_revision v join towline_rollout r on r.syncset = v.syncset
    where v.syncset = of_syncset and (v.revision = any (array[r.stable, r.goal, towline_unused.newest])) is not true
      and not exists (select from towline_turn t where t.syncset = v.syncset and v.revision in (t.revision, t.before))
$$;

-- Ends the rollout of a syncset, and forgets its revisions.
create function towline_end_rollout(of_syncset uuid) returns void language plpgsql set plan_cache_mode = force_custom_plan as $$
begin
  delete from towline_rollout where syncset = of_syncset;
  if not found then return; end if;
  delete from towline_turn where syncset = of_syncset;
  delete from towline_revision where syncset = of_syncset;
end $$;

-- Notes the content of a syncset that is about to be written, or was just made.
create function towline_revise(document towline_documents, is_new boolean) returns void language plpgsql
set plan_cache_mode = force_custom_plan as $$
declare
  revised jsonb := towline_content(document.data->'spec'); rollout towline_rollout; to_revision int; had bigint; waves jsonb;
begin
  if document.deleted_at is not null or document.data #> '{spec,rollout}' is null then
    perform towline_end_rollout(document.id);
    return;
  end if;
  -- Only this function changes what is compared, so that no lock is needed: most writes are of a status, and wait for no rollout.
  select * into rollout from towline_rollout where syncset = document.id;
  if found then
    select generation, data #> '{spec,rollout,waves}' into had, waves from towline_documents
      where kind = document.kind and id = document.id;
    if had = document.generation then return; end if;
    -- A wave is known by its place: what of other waves was done is passed over soon.
    if waves is distinct from document.data #> '{spec,rollout,waves}' then
      update towline_rollout set wave = 0, settled = null, checking = null, promoted = 0, tolerated = 0, failures = 0,
          reason = case state when 'Running' then 'Releasing' else reason end, message = case state when 'Running' then '' else message end
        where syncset = document.id and state in ('Running', 'Stopped');
    end if;
  else
    rollout := jsonb_populate_record(null::towline_rollout, jsonb_build_object('syncset', document.id, 'edited', 0, 'started', 0,
      'newest', 0, 'number', 0, 'goal', 1, 'state', 'Running', 'reason', 'Guarding', 'message', '', 'wave', 0, 'clock', 0, 'promoted', 0,
      'failures', 0, 'tolerated', 0, 'guarded', false, 'since', document.updated_at, 'actor', ''));
    if not is_new then
      -- What clusters have is what they keep.
      insert into towline_revision select d.id, 1, d.generation, d.version, d.updated_at, c.content, towline_content_kib(c.content)
        from towline_documents d, towline_content(d.data->'spec') c(content) where d.kind = document.kind and d.id = document.id;
      rollout.stable := 1; rollout.newest := 1; rollout.state := 'Complete'; rollout.reason := '';
    end if;
    insert into towline_rollout select rollout.*;
  end if;
  if exists (select from towline_revision where syncset = document.id and revision = rollout.newest
      and hash = jsonb_hash_extended(revised, 0) and content = revised) then
    return;
  end if;
  select revision into to_revision from towline_revision where syncset = document.id
    and hash = jsonb_hash_extended(revised, 0) and content = revised order by revision desc limit 1;
  if not found then
    select coalesce(max(revision), 0) + 1 into to_revision from towline_revision where syncset = document.id;
    insert into towline_revision values
      (document.id, to_revision, document.generation, document.version, document.updated_at, revised, towline_content_kib(revised));
  end if;
  -- An order may have changed the goal since it was read.
  update towline_rollout set newest = to_revision, edited = edited + 1 where syncset = document.id returning * into rollout;
  -- Ten are kept, and those in use.
  delete from towline_revision r where r.syncset = document.id
    and r.revision < (select revision from towline_revision where syncset = document.id order by revision desc offset 9 limit 1)
    and r.revision in (select u.revision from towline_unused(document.id, to_revision) u);
end $$;

-- The same of one that exists. Returns how many KiB more its revisions take. Where these are more than `most`, the oldest go that are not
-- in use; if that is too little, nothing is noted.
create function towline_revise_within(document towline_documents, most bigint) returns int language plpgsql
set plan_cache_mode = force_custom_plan as $$
declare had int := towline_revised(document.id); more int := -had; revised jsonb; present jsonb; kept int;
begin
  -- Nobody is charged for what is refused, so it is found out before anything is written. What is in use may change meanwhile.
  if most is not null then
    if document.deleted_at is null and document.data #> '{spec,rollout}' is not null then
      revised := towline_content(document.data->'spec');
      if exists (select from towline_rollout where syncset = document.id) then
        more := towline_content_kib(revised) - (select coalesce(sum(kib), 0) from towline_unused(document.id, null));
        if more > most then
          select revision into kept from towline_revision where syncset = document.id
            and hash = jsonb_hash_extended(revised, 0) and content = revised order by revision desc limit 1;
          if found then more := -(select coalesce(sum(kib), 0) from towline_unused(document.id, kept)); end if;
        end if;
      else
        select towline_content(data->'spec') into present from towline_documents where kind = document.kind and id = document.id;
        more := towline_content_kib(present) + case when present = revised then 0 else towline_content_kib(revised) end;
      end if;
    end if;
    if more > most then return more; end if;
  end if;
  perform towline_revise(document, false);
  more := towline_revised(document.id) - had;
  if more > most then
    select newest into kept from towline_rollout where syncset = document.id for update;
    delete from towline_revision where syncset = document.id and revision in (select revision from (
      select revision, sum(kib) over (order by revision) - kib as before from towline_unused(document.id, kept)) u
      where before < more - most);
    more := towline_revised(document.id) - had;
    if more > most then raise exception 'the quota is exceeded' using errcode = 'TW003'; end if;
  end if;
  return more;
exception when sqlstate 'TW003' then return more;
end $$;
