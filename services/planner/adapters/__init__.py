"""One file for each way to reach planners outside this process."""
