-- The daemon's account reads; with `notify` it also makes triggers, and their function beside the tables.
GRANT USAGE ON SCHEMA spec, status TO towline_reader, towline_notifier;
GRANT SELECT ON ALL TABLES IN SCHEMA spec, status TO towline_reader, towline_notifier;
GRANT CREATE ON SCHEMA status TO towline_notifier;
GRANT TRIGGER ON ALL TABLES IN SCHEMA spec, status TO towline_notifier;
-- Who has no rights may log in all the same.
GRANT USAGE ON SCHEMA spec, status TO towline_unprivileged;
