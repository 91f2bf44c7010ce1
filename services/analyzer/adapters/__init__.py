"""What surrounds the core: Spark, and its in-memory twin."""
