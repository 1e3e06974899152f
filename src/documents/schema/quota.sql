-- What each namespace has of the documents that clients write: their number, and the bytes of their fields as they are stored. It is
-- counted by triggers, in the transactions that write. What has no namespace is not counted.
create table towline_usage (
  namespace text collate "C" primary key, documents bigint not null, bytes bigint not null) with (fillfactor = 50);

-- After a row was stored, the size of a large value is known without reading it.
create function towline_count_usage() returns trigger language plpgsql as $$
declare more bigint := 0; size bigint := 0;
begin
  if tg_op <> 'DELETE' then
    more := 1;
    size := pg_column_size(new.labels) + pg_column_size(new.annotations) + pg_column_size(new.data) + pg_column_size(new.status)
      + coalesce(pg_column_size(new.sealed), 0);
  end if;
  if tg_op <> 'INSERT' then
    more := more - 1;
    size := size - pg_column_size(old.labels) - pg_column_size(old.annotations) - pg_column_size(old.data) - pg_column_size(old.status)
      - coalesce(pg_column_size(old.sealed), 0);
  end if;
  if more <> 0 or size <> 0 then
    insert into towline_usage as u values (coalesce(new.namespace, old.namespace), more, size)
      on conflict (namespace) do update set documents = u.documents + excluded.documents, bytes = u.bytes + excluded.bytes;
  end if;
  return null;
end $$;
create trigger usage after insert or update or delete on clusters for each row execute function towline_count_usage();
create trigger usage after insert or update or delete on syncsets for each row execute function towline_count_usage();
create trigger usage after insert or update or delete on secrets for each row execute function towline_count_usage();

insert into towline_usage
  select namespace, count(*), sum(pg_column_size(labels) + pg_column_size(annotations) + pg_column_size(data) + pg_column_size(status)
    + coalesce(pg_column_size(sealed), 0))
  from towline_documents where kind in ('clusters', 'syncsets', 'secrets') group by namespace;

-- Whether a change is more than its namespace may have. Where only the bytes are used up, what is little may still be changed, so that
-- whoever has to clear up can annotate and pause.
create function towline_is_full(change jsonb, quota jsonb) returns boolean language plpgsql as $$
declare used towline_usage;
begin
  select * into used from towline_usage where namespace = change->>'namespace';
  if change->>'expected' is null and used.documents >= (quota->>'documents')::bigint then return true; end if;
  return coalesce(used.bytes >= (quota->>'bytes')::bigint, false)
    and (change->>'expected' is null or pg_column_size(change->'row') > 8192);
end $$;
