-- What is stored of the passes over clusters, and what the dispatcher has checked. Only Towline writes to these tables.
--
-- The rows of a cluster are deleted by the dispatcher, when it sees the cluster's deletion in the log. A foreign key would have to
-- name the partition `clusters`, whose rows have no unique id but (kind, id), and would make a deletion under the lock of the log
-- wait for passes.

-- The last try of each syncset. Kind, namespace and name of the syncset are here so that one that is gone can be shown. `health_state` and
-- `health_inputs` are what `health`, which may be large, is compared by.
create table towline_result (
  cluster uuid not null, syncset uuid not null, kind text collate "C" not null, namespace text collate "C" not null,
  name text collate "C" not null, inputs bytea not null, generation bigint not null,
  result text not null check (result in ('Success', 'Failure')), reason text, message text,
  since timestamptz not null, first_success timestamptz, pending_deletions boolean not null, health jsonb,
  health_state text generated always as (health->>'state') stored,
  health_inputs bytea generated always as (decode(health->>'inputs', 'hex')) stored,
  primary key (cluster, syncset), check ((result = 'Success') = (reason is null)), check ((reason is null) = (message is null)));
create index on towline_result (syncset);
-- What fails, which is counted often and is little.
create index on towline_result (since) where result = 'Failure';
-- Whose health is read, which is counted often.
create index on towline_result (cluster) where health is not null;
-- What does not work, which is little.
create index towline_result_ill on towline_result (cluster) where health_state = 'Failed' or health->>'reason' = 'Late';
-- What fails on one cluster, for those who may not read all of them.
create index towline_result_failing on towline_result (cluster) where result = 'Failure';

-- The objects that syncsets have sent or are about to send. `content` is null while an object has to be sent. `resent`
-- counts the full passes in a row in which it was sent although nothing of it was new, `gone` those of the last ones in a row in which
-- it was gone; of what nobody wants, 255 says that somebody has taken it from the syncset. The key tells the syncsets of a cluster apart without a look
-- at all of its objects.
create table towline_applied (
  cluster uuid not null, api_group text collate "C" not null, kind text collate "C" not null, namespace text collate "C" not null,
  name text collate "C" not null, syncset uuid not null, api_version text not null, content bytea, wanted boolean not null,
  tracked boolean not null, adopted boolean not null, uid text, version text, owned bytea, resent smallint not null,
  gone smallint not null default 0,
  primary key (cluster, syncset, api_group, kind, namespace, name));
-- Objects that were adopted are never deleted, so they do not count when the guard checks deletions. The index also serves statements that
-- count them.
create index towline_applied_tracked on towline_applied (syncset, cluster, adopted) where tracked;

-- The patches that were sent. `content` is null if the last try failed.
create table towline_patched (
  cluster uuid not null, syncset uuid not null, position int not null, content bytea, uid text, version text,
  primary key (cluster, syncset, position));

-- How a cluster is, and when it is looked at again. `resyncs` counts demands for a full pass: one that comes during a pass must not be
-- lost when that pass writes when the next one is due. `home` is the identity of the cluster to which the kubeconfig of the document led
-- first. Where it leads elsewhere, what was there before is never deleted. `left_at` is when what fails, or is being deleted, is tried again.
-- `failure` says why no pass could begin, since too much is stored of the cluster: reason, message and since when.
create table towline_cluster (
  cluster uuid primary key, identity text, kubeconfig_generation bigint not null, reachable boolean, last_contact timestamptz,
  last_full timestamptz, next_full timestamptz, attempts bigint not null, retry_at timestamptz, resyncs bigint not null default 0,
  asked_generation bigint not null default 0, home text, left_at timestamptz, failure jsonb);
create index on towline_cluster (cluster) where failure is not null;

-- Which cluster each document leads to, by the UID of `kube-system`, in the order in which that was found out. Of the documents of a
-- namespace with one identity the first one owns the cluster, and nothing is sent for the others. A server can claim any identity, so
-- nothing is concluded from that of a document of another namespace.
create table towline_identity (
  cluster uuid primary key, namespace text collate "C" not null, identity text collate "C" not null, since bigserial);
create index on towline_identity (namespace, identity, since);

-- What the dispatcher has checked of a syncset's deletions: up to which version of the log (negative: its check was set aside at that version), whether the syncset is gone, and whether
-- its deletions are held; on how many clusters it would delete objects, of those where it tracks some (`tracks`), and since when it
-- is held or gone. `cause` says why it is held. `approved` is the last generation that an annotation approved, `always` that it approves all. `revision` is
-- where its rollout led when that was checked.
create table towline_guard (
  syncset uuid primary key, checked bigint not null, gone boolean not null, held boolean not null, clusters int not null,
  since timestamptz not null, tracks int not null default 0, cause text, kind text collate "C" not null default '',
  namespace text collate "C" not null default '', name text collate "C" not null default '', always boolean not null default false,
  approved bigint not null default 0, generation bigint not null default 0, revision int);
-- What is held or gone is little, and asked for each few seconds.
create index towline_guard_held on towline_guard (syncset) where held;
create index towline_guard_gone on towline_guard (syncset) where gone;
create index towline_guard_aside on towline_guard (checked) where checked < 0;

-- How many objects syncsets would delete on clusters, and how many of these are Namespaces, CRDs or PVCs: of syncsets that are held, with
-- `counted` where that is much, and, as `allowed`, where much was to be deleted when they were not. So many of them were approved.
create table towline_lost (
  cluster uuid not null, syncset uuid not null, objects int not null, precious int not null, approved int not null,
  approved_precious int not null, allowed boolean not null, counted boolean not null,
  primary key (cluster, syncset));
create index on towline_lost (syncset);

-- How many objects syncsets have deleted on clusters, but for those that were approved. It counts for ten minutes.
create table towline_deleted (syncset uuid not null, cluster uuid not null, at timestamptz not null, objects int not null);
create index on towline_deleted (syncset);
