"""Writer of the bytes that Kafka Streams' members exchange: the simulator's."""

from weir_replay.simulator.streams_bytes import NEVER, assignment, subscription, text, user_data

__all__ = ["NEVER", "assignment", "subscription", "text", "user_data"]
