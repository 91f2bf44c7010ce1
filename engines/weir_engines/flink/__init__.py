"""Apache Flink 1.18 to 2.x through its REST API."""
