"""Jobs over the tables of queues: functions of DataFrames, which `penstock pipeline` calls."""
