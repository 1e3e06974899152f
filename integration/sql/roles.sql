-- Once for each server. `towline_reader` is the daemon's account.
CREATE ROLE towline_reader LOGIN PASSWORD 'reader p@ss/word';
CREATE ROLE towline_notifier LOGIN PASSWORD 'notifier';
CREATE ROLE towline_stranger LOGIN PASSWORD 'stranger';
