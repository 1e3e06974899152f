-- items: [{request, claim?: {cluster, holder, token}, quota?: {documents, kib}, is_charged?, changes: [{kind, namespace, name, expected, row?, terms?, record?}, …]}, …]
-- record: {actor, address, via, verb, details}, for `towline_history`; none for what no client asked for
-- result: [{outcome: written | conflict | fenced | exceeded, version, at, used?, more?}, …], one element for each item, in order. `version`
-- is that of the first change; in a conflict, the present version of the first document that has another one than expected. `used` is what
-- the namespace has of the quota that is exceeded, and `more` what the first change adds to it: [documents, KiB].
--
-- The changes of an item are of different documents: all are compared with what was there before the first one, so that the log would
-- have a wrong predecessor for the second change of a document.
--
-- Versions are drawn under an advisory lock, and nowhere else, which is held until the commit is visible. So whoever reads
-- `version > R order by version` misses none, whatever other transactions are open.
--
-- Planning a look-up takes longer than inserting a row. So a new document is inserted without one, which fails where there is one of
-- its name; and a document that was looked up is written by `on conflict`, which names its index and so has a plan for good.
create procedure towline_write(items jsonb, inout result jsonb default null) language plpgsql as $$
declare
  item jsonb; changes jsonb; change jsonb; outcome text; moment timestamptz; first bigint; v bigint; answers jsonb[] := '{}';
  looked towline_present[]; r towline_present; w towline_documents; is_new boolean; keys text[]; key text;
  -- What the namespaces have that are concerned, with the changes so far: {namespace: [documents, KiB], …}.
  sums jsonb := '{}'; space text; used jsonb; counted bigint; grown bigint; is_limited boolean; revised int;
begin
  -- A snapshot that is older than the lock would not see the latest versions.
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'towline_write needs read committed' using errcode = 'TW002';
  end if;
  -- A crash would lose versions that clients have seen.
  if current_setting('synchronous_commit') = 'off' then perform set_config('synchronous_commit', 'local', true); end if;
  perform pg_advisory_xact_lock('towline_log'::regclass::bigint);
  -- While a dump is being restored, the row of `towline_meta` may be missing; and at its end the restore sets the sequence back, also
  -- if the versions have just been lifted.
  if not exists (select from towline_meta m, towline_version s where m.origin = towline_origin() and m.base <= s.last_value) then
    raise exception 'the database has another origin' using errcode = 'TW001';
  end if;
  for number in 0 .. jsonb_array_length(items) - 1 loop
    item := items->number; changes := item->'changes';
    outcome := 'written'; first := null; moment := clock_timestamp(); looked := '{}';
    if jsonb_array_length(changes) > 1 then
      keys := '{}';
      for i in 0 .. jsonb_array_length(changes) - 1 loop
        -- By its path, which copies no change.
        key := array[changes #>> array[i::text, 'kind'], changes #>> array[i::text, 'namespace'],
          changes #>> array[i::text, 'name']]::text;
        if key = any (keys) then
          raise exception 'an item changes a document twice' using errcode = 'invalid_parameter_value';
        end if;
        keys := keys || key;
      end loop;
    end if;
    if item ? 'claim' and not towline_holds(item->'claim', moment) then outcome := 'fenced'; end if;
    -- All expected versions are checked before the first change. Only the first change finds out by itself that its document is new.
    if outcome = 'written' then
      for i in 1 .. jsonb_array_length(changes) loop
        change := changes->(i - 1);
        continue when change->>'expected' = 'any' or (i = 1 and change->>'expected' is null and change ? 'row');
        r := towline_look(change);
        looked[i] := r;
        if r.version is distinct from (change->>'expected')::bigint then
          -- The first change may be in conflict, too.
          if i > 1 and looked[1] is null and changes #>> '{0,expected}' is null then
            first := (towline_look(changes->0)).version;
          end if;
          outcome := 'conflict'; first := coalesce(first, r.version); exit;
        end if;
      end loop;
    end if;
    if outcome = 'written' then
      for i in 1 .. jsonb_array_length(changes) loop
        change := changes->(i - 1); r := looked[i]; w := null; space := change->>'namespace'; is_new := false; revised := 0;
        if change ? 'row' then
          v := nextval('towline_version');
          w := jsonb_populate_record(null::towline_documents, change->'row');
          w.kind := change->>'kind'; w.namespace := space; w.name := change->>'name'; w.version := v;
          w.created_at := moment; w.updated_at := moment;
          -- The row says whether the document is being deleted; since when is a time of the database.
          if w.deleted_at is not null then w.deleted_at := moment; end if;
          -- `any` is for ClusterSyncs, which have no sealed field.
          w.kib := towline_kib(w.labels, w.annotations, w.finalizers, w.data, w.status,
            case when change->'row' ? 'sealed' then towline_sealed(w.sealed) else r.sealed end);
          -- What a client asks for is the first change, and only what makes more of it is refused.
          is_limited := i = 1 and item ? 'quota' and space <> '';
          if w.kind in ('syncsets', 'selectorsyncsets') then
            if change->>'expected' = 'any' then r := towline_look(change); end if;
            -- The content of a new one is its only revision; that of another one is noted while the document is as it was.
            if r.version is null then
              if w.data #> '{spec,rollout}' is not null and w.deleted_at is null then
                revised := towline_content_kib(towline_content(w.data->'spec'));
              end if;
            elsif w.data #> '{spec,rollout}' is not null or exists (select from towline_rollout where syncset = r.id) then
              w.id := r.id; used := coalesce(sums->space, towline_used(space));
              revised := towline_revise_within(w, case when is_limited then
                r.kib - w.kib + greatest(0, (item #>> '{quota,kib}')::bigint - (used->>1)::bigint) end);
            end if;
          end if;
          counted := case when r.version is null then 1 else 0 end; grown := w.kib - coalesce(r.kib, 0) + revised;
          if is_limited and (counted > 0 or grown > 0) then
            used := coalesce(sums->space, towline_used(space));
            if counted > 0 and (used->>0)::bigint + counted > (item #>> '{quota,documents}')::bigint
              or grown > 0 and (used->>1)::bigint + grown > (item #>> '{quota,kib}')::bigint then
              first := (towline_look(change)).version;
              -- What exists can't be made, whatever the quota is.
              outcome := case when first is distinct from r.version then 'conflict' else 'exceeded' end;
              exit;
            end if;
          end if;
          if r.version is null then
            insert into towline_documents select w.* on conflict (kind, namespace, name) do nothing;
            is_new := found;
            if not is_new then
              r := towline_look(change);
              if i = 1 and change->>'expected' is null then outcome := 'conflict'; first := r.version; exit; end if;
            end if;
          end if;
          if not is_new then
            w.id := r.id; w.created_at := r.created_at;
            if w.deleted_at is not null then w.deleted_at := coalesce(r.deleted_at, moment); end if;
          end if;
          if is_new and revised > 0 then perform towline_revise(w, true); end if;
          if not is_new then
            insert into towline_documents as t select w.* on conflict (kind, id) do update set labels = w.labels,
              annotations = w.annotations, finalizers = w.finalizers, generation = w.generation, version = v, updated_at = moment,
              deleted_at = w.deleted_at, data = w.data, status = w.status, kib = w.kib,
              -- A write that does not set the sealed field keeps it, also if a key rotation has just changed it.
              sealed = case when change->'row' ? 'sealed' then w.sealed else t.sealed end;
          end if;
          w.sealed := null;
          grown := w.kib - coalesce(r.kib, 0) + revised;
        else
          if r.version is null then r := towline_look(change); end if;
          continue when r.version is null;
          if change->>'kind' in ('syncsets', 'selectorsyncsets') then revised := -towline_revised(r.id); end if;
          v := nextval('towline_version'); w.id := r.id; w.labels := towline_remove(change->>'kind', r.id);
          grown := revised - r.kib;
        end if;
        counted := case when change->>'kind' = 'clustersyncs' then 0 when is_new then 1 when change ? 'row' then 0 else -1 end;
        if counted <> 0 or grown <> 0 then
          used := coalesce(sums->space, towline_used(space));
          sums := sums || jsonb_build_object(space, jsonb_build_array((used->>0)::bigint + counted, (used->>1)::bigint + grown));
        end if;
        first := coalesce(first, v);
        if change ? 'terms' or not change ? 'row' then
          perform towline_set_terms(w.id, case when change ? 'row' then change->'terms' end);
        end if;
        insert into towline_log values (v, moment, (item->>'request')::uuid, change->>'kind', w.id,
          change->>'namespace', change->>'name', w.labels, r.version,
          case when change ? 'row' then to_jsonb(w) - 'sealed' - 'kib' end,
          -- The log has the labels twice, and a sealed field that is kept is stored by nobody. A row takes about 512 bytes by itself.
          case when item ? 'is_charged' then (512 + pg_column_size(w.labels)) / 1024 + case when not change ? 'row' then 1
            when change->'row' ? 'sealed' then w.kib else w.kib - coalesce(r.sealed, 0) / 1024 end else 0 end);
        if change ? 'record' then
          insert into towline_history (at, actor, address, via, verb, kind, namespace, name, id, version, details)
            values (moment, change #>> '{record,actor}', change #>> '{record,address}', change #>> '{record,via}',
              change #>> '{record,verb}', change->>'kind', change->>'namespace', change->>'name', w.id, v,
              change #>> '{record,details}');
        end if;
      end loop;
    end if;
    answers := answers || (jsonb_build_object('outcome', outcome, 'version', first::text, 'at', moment) || case outcome
      when 'exceeded' then jsonb_build_object('used', used, 'more', jsonb_build_array(counted, grown)) else '{}' end);
  end loop;
  if sums <> '{}' then perform towline_use(sums); end if;
  result := to_jsonb(answers);
  perform pg_notify('towline', '');
  -- A function would hold the lock until the client's next message arrives: a client that has stopped would block all writers.
  commit;
end $$;
