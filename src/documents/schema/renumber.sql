-- Puts all further versions 2^40 above those that there are, for a database that may have lost some. It ends all claims and blocks new
-- ones until those from lost transactions have run out. Returns the new base, or null where another process was first or a restore is
-- under way.
create function towline_renumber(force boolean) returns bigint language plpgsql as $$
declare fresh bigint;
begin
  perform pg_advisory_xact_lock('towline_log'::regclass::bigint);
  if not force and exists (select from towline_meta m, towline_version s where m.origin = towline_origin() and m.base <= s.last_value)
    then return null; end if;
  select (1::bigint << 40) + greatest(m.base, s.last_value, coalesce((select max(version) from towline_log), 0),
    coalesce((select max(version) from towline_documents), 0)) into fresh from towline_meta m, towline_version s;
  -- A dump is being restored, and this row comes last.
  if not found then return null; end if;
  perform setval('towline_version', fresh);
  -- Everybody locks in this order: leader claims by name, rollouts, work claims by cluster, and the row of `towline_meta` last. Compaction,
  -- too, locks its claim before it raises `base`.
  perform from towline_claim order by name for no key update;
  perform from towline_rollout order by syncset for no key update;
  perform from towline_work order by cluster for no key update;
  update towline_meta set base = fresh, origin = towline_origin();
  update towline_work set holder = null, token = token + 1, until = now() + interval '30 s';
  update towline_claim set holder = null, token = token + 1, until = now() + interval '30 s';
  -- What clusters have may not be what is stored: somebody has to look before more of them change.
  update towline_rollout r set state = 'Stopped', reason = 'Restored', message = '', guarded = false, since = clock_timestamp()
    where r.state in ('Running', 'RollingBack') or towline_begins(r);
  perform towline_take_back(r.syncset, null) from towline_rollout r where (r.state, r.reason) = ('Stopped', 'Restored');
  insert into towline_history (at, actor, address, via, verb, details) values (clock_timestamp(), session_user,
    coalesce(host(inet_client_addr()), ''), 'database', 'renumber',
    jsonb_build_object('note', 'further versions are above ' || fresh || case when force then '' else ', since the origin is another one' end)::text);
  perform pg_notify('towline', '');
  return fresh;
end $$;
