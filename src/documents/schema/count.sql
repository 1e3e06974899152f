-- In a transaction of its own: calls that had begun when `towline_write` was replaced count nothing, and have ended once this one has
-- the lock.
select pg_advisory_xact_lock('towline_log'::regclass::bigint);
update towline_documents set kib = towline_kib(labels, annotations, finalizers, data, status, octet_length(sealed)) where kib is null;
select towline_recount();
