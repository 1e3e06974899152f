-- The versions of a syncset that were not judged yet, however many others the log has.
create index if not exists towline_log_of_syncsets on towline_log (id, version) where kind in ('syncsets', 'selectorsyncsets');
