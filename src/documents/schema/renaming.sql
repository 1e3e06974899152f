-- The syncsets that name objects by labels and delete what they no longer want.
create index if not exists syncsets_named_by_labels on syncsets (id) where data #> '{spec,enableResourceTemplates}' = 'true'
  and data #> '{spec,resourceApplyMode}' = '"Sync"' and jsonb_path_exists(data,
    '$.spec.resources[*].metadata ? (@.name like_regex "{{" flag "q" || @.namespace like_regex "{{" flag "q")');
create index if not exists selectorsyncsets_named_by_labels on selectorsyncsets (id) where data #> '{spec,enableResourceTemplates}' = 'true'
  and data #> '{spec,resourceApplyMode}' = '"Sync"' and jsonb_path_exists(data,
    '$.spec.resources[*].metadata ? (@.name like_regex "{{" flag "q" || @.namespace like_regex "{{" flag "q")');
-- The objects that a syncset deletes on a cluster because labels of it have other values, as [[group, kind, namespace, name], …]; null
-- if the syncset matches the cluster no more. With `back` those that go because the labels are restored, which does not count.
alter table towline_lost add column if not exists objects jsonb;
