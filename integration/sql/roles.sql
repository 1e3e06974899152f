-- Once for each server. `towline_reader` is the daemon's account, `towline_hub` the account of the hub's replicas.
CREATE ROLE towline_reader LOGIN PASSWORD 'reader p@ss/word';
CREATE ROLE towline_notifier LOGIN PASSWORD 'notifier';
CREATE ROLE towline_unprivileged LOGIN PASSWORD 'unprivileged';
CREATE ROLE towline_hub LOGIN PASSWORD 'hub';
