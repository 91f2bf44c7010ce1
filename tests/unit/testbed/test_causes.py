"""A dead part is reported by the cause in its log, whatever was printed after it."""

import pytest

from testbed.process import cause_of, sentence_of_end

KAFKA = """\
[2026-01-01 12:00:01,204] INFO Awaiting socket connections on 127.0.0.1:19092. (kafka.network.DataPlaneAcceptor)
[2026-01-01 12:00:01,310] ERROR [KafkaRaftServer nodeId=1] Fatal error during startup (kafka.server.KafkaRaftServer)
org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:19092: Address already in use.
\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:733)
Caused by: java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
\t... 14 more
[2026-01-01 12:00:01,402] INFO App info kafka.server for 1 unregistered (org.apache.kafka.common.utils.AppInfoParser)
"""
FLINK = """\
2026-01-01 12:00:07,001 ERROR org.apache.flink.util.FatalExitExceptionHandler - FATAL: Thread 'flink-akka' produced an exception
java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
2026-01-01 12:00:07,120 INFO  org.apache.flink.runtime.blob.BlobServer - Stopped BLOB server at 127.0.0.1:40123
"""
PYTHON = """\
Traceback (most recent call last):
  File "/work/services/monitor/service.py", line 71, in run
    raise ValueError("the interval must be above 0 s")
ValueError: the interval must be above 0 s
"""
REDIS = """\
912:M 01 Jan 2026 12:00:09.001 * Asynchronous AOF fsync is taking too long
912:M 01 Jan 2026 12:00:09.310 # Error writing to the AOF file: No space left on device
912:M 01 Jan 2026 12:00:09.311 # Redis is now ready to exit, bye bye...
"""
NESTED = """\
org.apache.flink.runtime.entrypoint.ClusterEntrypointException: Failed to initialize the cluster entrypoint.
\tat org.apache.flink.runtime.entrypoint.ClusterEntrypoint.startCluster(ClusterEntrypoint.java:243)
Caused by: org.apache.flink.util.FlinkException: Could not create the DispatcherResourceManagerComponent.
\t... 6 more
Caused by: java.lang.NumberFormatException: For input string: "nonsense"
\t... 12 more
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (KAFKA, "java.net.BindException: Address already in use"),
        (FLINK, "java.lang.OutOfMemoryError: Java heap space"),
        (PYTHON, "ValueError: the interval must be above 0 s"),
        (REDIS, "912:M 01 Jan 2026 12:00:09.310 # Error writing to the AOF file: No space left on device"),
        (NESTED, 'java.lang.NumberFormatException: For input string: "nonsense"'),
        ("settings: WEIR_PLANNER_PORT: must be a number\n", "settings: WEIR_PLANNER_PORT: must be a number"),
    ],
)
def test_the_line_with_the_cause_is_found(log: str, cause: str) -> None:
    """An exception's innermost cause, a port in use, a full disk, too little memory: not the lines of the shutdown."""
    assert cause_of(log) == cause


def test_a_dead_part_is_one_sentence() -> None:
    """It names the part, the cause and the log; a killed process has left no cause in its log."""
    assert sentence_of_end("kafka", 1, KAFKA, "run/kafka.log") == (
        "kafka ended with code 1: java.net.BindException: Address already in use (log: run/kafka.log)"
    )
    assert sentence_of_end("monitor", -9, PYTHON, "run/monitor.log") == (
        "monitor was ended by SIGKILL, by hand or for want of memory (log: run/monitor.log)"
    )
    assert (
        sentence_of_end("redis", 1, "", "run/redis.log")
        == "redis ended with code 1: its log is empty (log: run/redis.log)"
    )
    assert len(sentence_of_end("flink", 1, "x" * 5000, "run/flink.log")) <= 160
