"""The knowledge service's settings."""

from functools import cached_property
from pathlib import Path
from typing import Self, TypedDict
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from weir_runtime.reach import USUAL_TARGETS, Allowed
from weir_runtime.settings import KubernetesSettings

from .core import MAX_HISTORY_COUNT
from .receivers import PREFIX, Receivers
from .spend import Price, Prices, Unit

_PRICE = r"^[0-9]{1,9}(\.[0-9]{1,9})? [A-Z]{3}$"


class Kept(TypedDict):
    """Bounds of the feed and of each application's history in a store."""

    events_kept: int
    events_bytes: int
    history_kept: int
    history_seconds: float


class KnowledgeSettings(KubernetesSettings):
    """Settings of the knowledge service: `WEIR_KNOWLEDGE_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_KNOWLEDGE_", frozen=True, extra="ignore", populate_by_name=True)

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """address of Redis, which stores everything; may contain a password, so it is never shown"""
    planner_url: str | None = Field("http://127.0.0.1:8093", pattern=r"^https?://[^\s@]+$")
    """address of the planner service, which checks planners and parameters of policies"""
    planner_token: SecretStr | None = None
    """bearer token for the planner service (role read)"""
    history_count: int = Field(500, ge=1, le=MAX_HISTORY_COUNT)
    """past cycles kept for each application"""
    history_age_seconds: float = Field(86_400.0, gt=0)
    """age after which a past cycle is deleted, in s"""
    explained_cycles: int = Field(60, ge=1, le=1_000)
    """cycles kept in full for `explain`: some 2 kB each"""
    events_kept: int = Field(20_000, ge=100)
    """events of the feed that a client can resume from"""
    events_megabytes: int = Field(16, ge=1, le=100_000)
    """memory of the feed in Redis, in MB; the oldest events are deleted when it is full"""
    event_streams: int = Field(100, ge=1, le=5_000)
    """open event streams, each with a connection to Redis; further ones get status 503"""
    state_cache_bytes: int = Field(16_000_000, ge=0)
    """cache of application states, in bytes of JSON; the process needs about seven times that"""
    slot_hour_price: str | None = Field(None, pattern=_PRICE)
    """price of one slot-hour of Flink, such as 0.042 EUR; the page and `weir get` show slot-hours as money, too"""
    instance_hour_price: str | None = Field(None, pattern=_PRICE)
    """price of one hour of an instance of a Kafka Streams application, a consumer group or a service, such as 0.08 EUR"""
    metrics_applications: int = Field(500, ge=0)
    """applications with series in /metrics: about 20 each, and 10 for each operator"""
    metrics_operators: int = Field(50, ge=0)
    """operators of each application with series"""
    notifications_file: Path | None = None
    """JSON file with the receivers of notifications by namespace, * for all others: {"shop": {"url": …, "format": cloudevents or
    slack, "authorization_file": …, "ca_file": …, "late_after": "5m", "kinds": […], "source": …}}; it is read again when it changes"""
    notification_networks: str = USUAL_TARGETS
    """networks that addresses of these receivers may lie in, as in WEIR_TARGET_NETWORKS; without TLS only loopback"""
    kubernetes_namespaces: str = Field(
        default="",
        pattern=r"^([a-z0-9][-a-z0-9]*(,[a-z0-9][-a-z0-9]*)*)?$",
        description="namespaces whose ScalingPolicy resources are policies, comma-separated; empty: none, and no connection to Kubernetes",
    )

    @cached_property
    def receivers(self) -> Receivers:
        """The receivers of notifications; `ValueError` that names the setting if they cannot be read."""
        try:
            Allowed.of("https", "*", self.notification_networks, prefix=PREFIX)
        except ValueError as error:
            raise ValueError(f"{PREFIX}_NETWORKS: {error}") from None
        found = Receivers(self.notifications_file, self.notification_networks)
        if found.files is not None:
            self.follow(found.files)
        return found

    @model_validator(mode="after")
    def _readable_receivers(self) -> Self:
        _ = self.receivers
        return self

    @property
    def prices(self) -> Prices:
        """The prices that are set, by unit."""
        given: dict[Unit, str | None] = {"slot": self.slot_hour_price, "instance": self.instance_hour_price}
        return {unit: Price.read(text) for unit, text in given.items() if text is not None}

    def kept(self) -> Kept:
        """Return what a store keeps, as its arguments."""
        return {
            "events_kept": self.events_kept,
            "events_bytes": self.events_megabytes * 1_000_000,
            "history_kept": self.history_count,
            "history_seconds": self.history_age_seconds,
        }

    @field_validator("redis_url")
    @classmethod
    def _an_address(cls, url: SecretStr) -> SecretStr:
        try:
            parts = urlsplit(url.get_secret_value())
            if parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0:
                return url
        except ValueError:
            pass  # an invalid port
        raise ValueError("must look like redis://host:6379/0 (or rediss://…)")
