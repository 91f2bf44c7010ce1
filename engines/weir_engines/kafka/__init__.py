"""Kafka: consumer groups as applications (Kafka Streams, and plain consumers), and the partitions of any sources."""
