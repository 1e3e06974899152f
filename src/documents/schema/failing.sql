-- What fails on one cluster, for those who may not read all of them.
create index if not exists towline_result_failing on towline_result (cluster) where result = 'Failure';
