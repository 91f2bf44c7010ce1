"""Resources of the Flink Kubernetes Operator, in which it is told a job's parallelism."""
