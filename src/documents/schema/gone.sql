-- Of the full passes in a row that `resent` counts, the last ones in a row in which the object was gone. Null in rows that the release
-- before has inserted: none. Where it updates a row, the count stays as it was, until a pass of this release.
alter table towline_applied add column if not exists gone smallint;
