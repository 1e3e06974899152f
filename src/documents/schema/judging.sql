-- What edits of a syncset have dropped within ten minutes: a list of {"at": time, "objects": [[group, kind, namespace, name], …]}.
alter table towline_guard add column dropped jsonb;
