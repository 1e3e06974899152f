-- Objects that were adopted are never deleted, so they do not count when deletions are judged. The index also serves statements that
-- count them. Builds between two releases have made it with the column before.
create index if not exists towline_applied_tracked on towline_applied (syncset, cluster, adopted) where tracked;
