-- The identity of the cluster to which the kubeconfig of a document led first. Where it leads elsewhere, what was there before is never
-- deleted. Null in rows that the release before has written: that is the identity that they have.
alter table towline_pace add column if not exists home text;
