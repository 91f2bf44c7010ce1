"""Spark's factory of Python workers, with their imports already made: a new worker is a fork and shares their memory.

Only what starts no thread may be imported before a fork; pandas and pyarrow do, and are left to the workers.
"""

import gc

import pyspark.sql.streaming.proto.StateMessage_pb2
import pyspark.sql.streaming.stateful_processor_api_client
import pyspark.sql.streaming.value_state_client
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import weir_analyzer.adapters.processor  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
