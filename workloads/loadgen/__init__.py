"""The load generator: records into a Kafka topic at a rate that follows a trace and can be set over HTTP."""
