-- What the hub wants: one row for each of its objects.
CREATE SCHEMA spec;

CREATE TABLE spec.policies (
    id uuid PRIMARY KEY,
    payload jsonb NOT NULL,
    created_at timestamp NOT NULL DEFAULT now(),
    updated_at timestamp NOT NULL DEFAULT now(),
    deleted boolean NOT NULL DEFAULT false
);
CREATE TABLE spec.placementrules (LIKE spec.policies INCLUDING ALL);
CREATE TABLE spec.placements (LIKE spec.policies INCLUDING ALL);
CREATE TABLE spec.subscriptions (LIKE spec.policies INCLUDING ALL);
