"""Where a job runs, one machine or a cluster: its nodes, what it is asked to be, what it has to report."""
