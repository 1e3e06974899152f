-- Where the versions come from: system identifier, timeline, and the log's OID. A promotion, a point-in-time recovery and a restored
-- dump change it. Managed services may refuse one of these functions; then it is an empty text, and those changes go unnoticed.
do $do$
begin
  create function towline_origin() returns text language plpgsql stable as $$
  begin
    return concat_ws('/', (pg_control_system()).system_identifier,
      substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 'towline_log'::regclass::oid);
  end $$;
  perform towline_origin();
exception when insufficient_privilege or undefined_function or feature_not_supported then
  create function towline_origin() returns text language sql stable as $$ select ''::text $$;
end $do$;
update towline_meta set origin = towline_origin();
