"""One file for each protocol of planners outside this process."""
