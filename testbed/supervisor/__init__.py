"""Supervisor of the Kafka Streams sample: runs its instances as processes and serves their number over HTTP."""
