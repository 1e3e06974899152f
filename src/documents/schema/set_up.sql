do $$
begin
  if pg_is_in_recovery() then
    raise exception 'the server is in recovery, but the hub needs the primary' using errcode = 'TW003';
  end if;
  if current_setting('server_version_num')::int < 130000 then
    raise exception 'the hub needs PostgreSQL 13 or newer, but this is %', current_setting('server_version') using errcode = 'TW004';
  end if;
  perform set_config(name, value, false) from (values
    ('TimeZone', 'UTC'),
    ('default_transaction_isolation', 'read committed'),
    -- Plans look expensive before a table has statistics, and compiling one takes seconds.
    ('jit', 'off'),
    ('statement_timeout', '30s'),
    ('lock_timeout', '5s'),
    ('idle_in_transaction_session_timeout', '30s'),
    ('tcp_keepalives_idle', '10'),
    ('tcp_keepalives_interval', '5'),
    ('tcp_keepalives_count', '3')) settings (name, value);
end $$
