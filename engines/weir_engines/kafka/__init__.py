"""Consumer groups of Kafka as applications: Kafka Streams, and plain consumers."""
