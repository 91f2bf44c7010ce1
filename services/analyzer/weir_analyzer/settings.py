"""The analyzer's settings: where Spark runs and keeps its state, how often it looks, and the windows of the analysis."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from weir_analyzer.core import AnalysisSettings
from weir_runtime.lease import Terms
from weir_runtime.settings import ServiceSettings, checked_ports, http_port

_STANDALONE = "spark://"
_HOST = r"(\[[0-9A-Fa-f:]+\]|[^\s,:/@]+):\d+"
_SHOWN_SPARK_CONF = frozenset(
    {
        "spark.blockManager.port",
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.driver.cores",
        "spark.driver.maxResultSize",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.driver.port",
        "spark.dynamicAllocation.enabled",
        "spark.executor.cores",
        "spark.executor.heartbeatInterval",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.locality.wait",
        "spark.memory.fraction",
        "spark.network.timeout",
        "spark.port.maxRetries",
        "spark.rpc.askTimeout",
        "spark.sql.shuffle.partitions",
        "spark.submit.deployMode",
        "spark.task.cpus",
        "spark.task.maxFailures",
        "spark.ui.enabled",
        "spark.ui.port",
    }
)
"""Spark settings whose values may be shown. Any other may hold a secret, as `spark.hadoop.fs.s3a.secret.key` does."""
_MASTER = re.compile(rf"local(\[([1-9]\d*|\*)(,[1-9]\d*)?\])?|{_STANDALONE}{_HOST}(,{_HOST})*|yarn|k8s://\S+")


class AnalyzerSettings(AnalysisSettings, ServiceSettings):
    """Settings of the analyzer: `WEIR_ANALYZER_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_ANALYZER_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8092)
    spark_master: str = Field(
        default="local[2]",
        description="where Spark runs: local[cores], or a cluster such as spark://host:7077",
    )
    checkpoint: str = Field(
        default="runs/analyzer",
        min_length=1,
        description="folder or URL of the state; on a cluster one that all its machines see",
    )
    jars: Path | None = Field(
        default=None,
        description="folder with the Kafka connector's four jars; default: .cache/jars/spark of the project",
    )
    shuffle_partitions: int = Field(
        default=4,
        ge=1,
        le=2000,
        description="parts of the state, and maximum number of cores that work at once. Each doubling costs latency on a "
        "small machine; another number starts a new checkpoint",
    )
    trigger_milliseconds: int = Field(
        default=100,
        ge=0,
        le=60_000,
        description="pause between two batches, in ms; 0: none, which keeps a core busy",
    )
    max_records_per_batch: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        description="maximum number of observations of a batch, so that a backlog is processed in parts",
    )
    driver_memory_megabytes: int = Field(default=640, ge=256, le=65_536, description="heap of Spark's driver, in MB")
    executor_memory_megabytes: int = Field(
        default=768,
        ge=512,
        le=262_144,
        description="heap of each executor on a cluster, in MB; Python's workers take a further 150 MB or so for each core",
    )
    executor_cores: int | None = Field(
        default=None, ge=1, le=256, description="cores of each executor on a cluster; default: what the cluster gives"
    )
    spark_conf: dict[str, SecretStr] = Field(
        default_factory=dict,
        description='further Spark settings as JSON, for instance {"spark.cores.max": "4"}; only sizes, times and ports are shown',
    )
    lease_seconds: float = Field(
        default=10.0,
        ge=6,
        le=25,
        description="one analyzer works at a time; another one takes over this long after it fails, in s. "
        "Brokers accept at least 6 s by default",
    )
    standby_seconds: float = Field(
        default=30.0,
        ge=0,
        description="time that another analyzer stands by while one works, in s, before it ends with code 2; inf: without limit",
    )

    @field_validator("spark_master")
    @classmethod
    def _master_that_spark_knows(cls, value: str) -> str:
        if not _MASTER.fullmatch(value):
            raise ValueError("must be local[CORES], local[*], spark://HOST:PORT, yarn or k8s://ADDRESS")
        if value.startswith(_STANDALONE):
            checked_ports(value.removeprefix(_STANDALONE))
        return value

    @field_validator("spark_conf")
    @classmethod
    def _spark_names(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        wrong = next((name for name in value if not name.startswith("spark.")), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is no Spark setting: its name must begin with 'spark.'")
        return value

    def describe(self) -> dict[str, Any]:
        """All values; of Spark's settings those that hold no secret, whatever the others are called."""
        conf = {
            name: value.get_secret_value() if name in _SHOWN_SPARK_CONF else "***"
            for name, value in self.spark_conf.items()
        }
        return {**super().describe(), "spark_conf": conf}

    def terms(self) -> Terms:
        """How long a lease lasts and is waited for."""
        return Terms("analyzer", lease_seconds=self.lease_seconds, standby_seconds=self.standby_seconds)

    def analysis(self) -> AnalysisSettings:
        """The part that the core needs: Spark's workers get no secrets."""
        return AnalysisSettings(**self.model_dump(include=set(AnalysisSettings.model_fields)))
