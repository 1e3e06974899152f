-- items: [{request, claim?: {cluster, holder, token}, changes: [{kind, namespace, name, expected, row?, terms?}, …]}, …]
-- result: [{outcome: written | conflict | fenced, version, at}, …], one element for each item, in order.
--
-- Versions are drawn under an advisory lock, and nowhere else, which is held until the commit is visible. So whoever reads
-- `version > R order by version` misses none, whatever other transactions are open.
create procedure towline_write(items jsonb, inout result jsonb default null) language plpgsql as $$
declare
  item jsonb; change jsonb; r towline_documents; w towline_documents; v bigint; seen bigint; first bigint; verdict text; moment timestamptz;
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
  result := '[]';
  for item in select e from jsonb_array_elements(items) e loop
    verdict := 'written'; first := null; moment := clock_timestamp();
    -- This lock mode conflicts with a new grant of the claim, and not with requests for the cluster. It never waits.
    if item ? 'claim' then
      perform from towline_work k where k.cluster = (item #>> '{claim,cluster}')::uuid and k.holder = item #>> '{claim,holder}'
        and k.token = (item #>> '{claim,token}')::bigint and k.until > moment for key share skip locked;
      if not found then verdict := 'fenced'; end if;
    end if;
    -- All expected versions are checked before the first change.
    if verdict = 'written' then
      for change in select e from jsonb_array_elements(item->'changes') e
        where coalesce(e->'expected', 'null') <> '"any"' loop
        select version into seen from towline_documents
          where kind = change->>'kind' and namespace = change->>'namespace' and name = change->>'name';
        if seen is distinct from (change->>'expected')::bigint then verdict := 'conflict'; first := seen; exit; end if;
      end loop;
    end if;
    if verdict = 'written' then
      for change in select e from jsonb_array_elements(item->'changes') e loop
        select * into r from towline_documents
          where kind = change->>'kind' and namespace = change->>'namespace' and name = change->>'name';
        continue when r.version is null and not change ? 'row';
        v := nextval('towline_version'); first := coalesce(first, v); w := null;
        if change ? 'row' then
          w := jsonb_populate_record(null::towline_documents, change->'row' || jsonb_build_object('kind', change->'kind',
            'namespace', change->'namespace', 'name', change->'name', 'version', v));
          w.updated_at := moment; w.created_at := coalesce(r.created_at, moment); w.id := coalesce(r.id, w.id);
          -- The row says whether the document is being deleted; since when is a time of the database.
          if w.deleted_at is not null then w.deleted_at := coalesce(r.deleted_at, moment); end if;
          if r.version is null then insert into towline_documents select w.*;
          else update towline_documents t set labels = w.labels, annotations = w.annotations, finalizers = w.finalizers,
              generation = w.generation, version = v, updated_at = moment, deleted_at = w.deleted_at, data = w.data, status = w.status,
              -- A write that does not set the sealed field keeps it, also if a key rotation has just changed it.
              sealed = case when change->'row' ? 'sealed' then w.sealed else t.sealed end
            where t.kind = w.kind and t.id = w.id;
          end if;
        else delete from towline_documents t where t.kind = r.kind and t.id = r.id;
        end if;
        if change ? 'terms' or not change ? 'row' then
          delete from towline_terms where selector = coalesce(r.id, w.id);
          insert into towline_terms select distinct e->>0, e->>1, w.id from jsonb_array_elements(change->'terms') e where change ? 'row';
        end if;
        insert into towline_log values (v, moment, (item->>'request')::uuid, change->>'kind', coalesce(r.id, w.id),
          change->>'namespace', change->>'name', coalesce(w.labels, r.labels), r.version,
          case when change ? 'row' then to_jsonb(w) - 'sealed' end);
      end loop;
    end if;
    result := result || jsonb_build_array(jsonb_build_object('outcome', verdict, 'version', first::text, 'at', moment));
  end loop;
  perform pg_notify('towline', '');
  -- A function would hold the lock until the client's next message arrives: a client that has stopped would block all writers.
  commit;
end $$;
