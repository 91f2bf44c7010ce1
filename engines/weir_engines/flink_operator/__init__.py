"""Resources of the Flink Kubernetes Operator, whose specs have the parallelism of its jobs."""
