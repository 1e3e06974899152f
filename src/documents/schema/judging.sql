-- What edits of a syncset have dropped within ten minutes: a list of {"at": time, "objects": [[group, kind, namespace, name], …]}.
alter table towline_guard add column dropped jsonb;
-- Objects that were adopted are never deleted, so they do not count when deletions are judged. The index also serves statements that
-- count them.
create index towline_applied_tracked on towline_applied (syncset, cluster, adopted) where tracked;
drop index towline_applied_syncset_cluster_idx;
