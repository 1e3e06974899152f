-- The functions below plan their statements anew in each call: a plan from a time when the tables were empty would go on reading them
-- from end to end.

-- What there is of a document; its version is null if it does not exist.
create type towline_present as (version bigint, id uuid, created_at timestamptz, deleted_at timestamptz);
create function towline_look(change jsonb) returns towline_present language plpgsql set plan_cache_mode = force_custom_plan as $$
declare present towline_present;
begin
  select version, id, created_at, deleted_at into present from towline_documents
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
  return had;
end $$;

-- Replaces the terms of a selector; null removes them.
create function towline_set_terms(of_selector uuid, terms jsonb) returns void language plpgsql
set plan_cache_mode = force_custom_plan as $$
begin
  delete from towline_terms where selector = of_selector;
  insert into towline_terms select distinct e->>0, e->>1, of_selector from jsonb_array_elements(terms) e;
end $$;
