-- What the leaf hubs report: rows of clusters, and objects of the leaf hubs as they are there.
CREATE SCHEMA status;

CREATE TYPE status.error_type AS ENUM ('disconnected', 'none');
CREATE TYPE status.compliance_type AS ENUM ('compliant', 'non_compliant', 'unknown', 'pending');

CREATE TABLE status.compliance (
    id uuid NOT NULL,
    cluster_name varchar(63) NOT NULL,
    leaf_hub_name varchar(63) NOT NULL,
    error status.error_type NOT NULL,
    compliance status.compliance_type NOT NULL
);
CREATE UNIQUE INDEX compliance_leaf_hub_id_cluster ON status.compliance (leaf_hub_name, id, cluster_name);

CREATE TABLE status.placementrules (
    id uuid NOT NULL,
    leaf_hub_name varchar(63) NOT NULL,
    payload jsonb NOT NULL
);
CREATE TABLE status.placements (LIKE status.placementrules INCLUDING ALL);
CREATE TABLE status.placementdecisions (LIKE status.placementrules INCLUDING ALL);
CREATE TABLE status.subscription_statuses (LIKE status.placementrules INCLUDING ALL);
CREATE TABLE status.subscription_reports (LIKE status.placementrules INCLUDING ALL);

DO $$
DECLARE
    reported text;
BEGIN
    FOREACH reported IN ARRAY ARRAY['placementrules', 'placements', 'placementdecisions', 'subscription_statuses', 'subscription_reports'] LOOP
        EXECUTE format(
            'CREATE UNIQUE INDEX %I ON status.%I (leaf_hub_name, (payload -> ''metadata'' ->> ''name''), (payload -> ''metadata'' ->> ''namespace''))',
            reported || '_leaf_hub_name_namespace', reported);
        EXECUTE format(
            'CREATE INDEX %I ON status.%I ((payload -> ''metadata'' ->> ''name''), (payload -> ''metadata'' ->> ''namespace''))',
            reported || '_name_namespace', reported);
    END LOOP;
END
$$;
