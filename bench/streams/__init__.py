"""Kafka Streams under the loop: reading many groups, load steps, scale-ins, and a contest with common rules."""
