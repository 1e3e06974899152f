-- What is held or gone is little, and asked for each few seconds.
create index if not exists towline_guard_held on towline_guard (syncset) where held;
create index if not exists towline_guard_gone on towline_guard (syncset) where gone;
