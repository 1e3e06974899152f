-- The namespace of each cluster that has work, '' where it is not known: a claim passes over the clusters of a namespace without reading
-- their rows.
alter table towline_work add column namespace text collate "C" not null default '';
update towline_work w set namespace = c.namespace from clusters c where c.kind = 'clusters' and c.id = w.cluster;
create index towline_work_of_namespaces on towline_work (namespace, urgent, ready_at);
