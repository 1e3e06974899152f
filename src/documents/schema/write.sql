-- The functions below plan their statements anew in each call: a plan from a time when the tables were empty would go on reading them
-- from end to end.

-- What there is of a document; its version is null if it does not exist.
create type towline_present as (version bigint, id uuid, created_at timestamptz, deleted_at timestamptz, kib int, sealed int);
create function towline_look(change jsonb) returns towline_present language plpgsql set plan_cache_mode = force_custom_plan as $$
declare present towline_present;
begin
  select version, id, created_at, deleted_at, kib, towline_sealed(sealed) into present from towline_documents
    where kind = change->>'kind' and namespace = change->>'namespace' and name = change->>'name';
  return present;
end $$;

-- Whether a claim is held at this moment. Its row is locked in a mode that conflicts with a new grant, and not with requests for the
-- cluster. It never waits.
create function towline_holds(claim jsonb, moment timestamptz) returns boolean language plpgsql
set plan_cache_mode = force_custom_plan as $$
begin
  perform from towline_work w where w.cluster = (claim->>'cluster')::uuid and w.holder = claim->>'holder'
    and w.token = (claim->>'token')::bigint and w.until > moment for key share skip locked;
  return found;
end $$;

-- Deletes a document, and returns the labels that it had.
create function towline_remove(of_kind text, of_id uuid) returns jsonb language plpgsql set plan_cache_mode = force_custom_plan as $$
declare had jsonb;
begin
  delete from towline_documents where kind = of_kind and id = of_id returning labels into had;
  if of_kind in ('syncsets', 'selectorsyncsets') then perform towline_end_rollout(of_id); end if;
  return had;
end $$;

-- Replaces the terms of a selector; null removes them.
create function towline_set_terms(of_selector uuid, terms jsonb) returns void language plpgsql
set plan_cache_mode = force_custom_plan as $$
begin
  delete from towline_terms where selector = of_selector;
  insert into towline_terms select distinct e->>0, e->>1, of_selector from jsonb_array_elements(terms) e;
end $$;

-- The bytes of what a sealed field holds, whichever key has sealed it: without the byte that says how, the id of the key with its length,
-- the nonce and the tag.
create function towline_sealed(sealed bytea) returns int language sql immutable as $$
  select greatest(0, octet_length(sealed) - case when substr(sealed, 1, 1) = '\x01' and octet_length(sealed) > 30
    then 30 + get_byte(substr(sealed, 2, 1) || '\x00', 0) else 1 end)
$$;

-- The KiB of these columns, whether they are compressed or not, and of a sealed field that holds so many bytes.
create function towline_kib(labels jsonb, annotations jsonb, finalizers text[], data jsonb, status jsonb, sealed int) returns int
language sql stable as $$
  -- What is concatenated is not compressed.
  select (pg_column_size(labels || '{}') + pg_column_size(annotations || '{}') + octet_length(finalizers::text)
    + pg_column_size(data || '{}') + pg_column_size(status || '{}') + coalesce(sealed, 0) + 1023) / 1024
$$;

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
