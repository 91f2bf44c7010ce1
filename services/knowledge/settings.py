"""The knowledge service's settings."""

from math import inf
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from runtime.lease import Terms
from runtime.settings import TargetSettings

from .core import MAX_HISTORY_COUNT


class KnowledgeSettings(TargetSettings):
    """Settings of the knowledge service: `WEIR_KNOWLEDGE_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_KNOWLEDGE_", frozen=True, extra="ignore", populate_by_name=True)

    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        description="where everything is remembered; may carry a password, so it is never shown",
    )
    planner_url: str | None = Field(
        default="http://127.0.0.1:8093",
        pattern=r"^https?://[^\s@]+$",
        description="the planner service; with it a policy with a planner or parameters that it would not take is refused when written",
    )
    planner_token: SecretStr | None = Field(
        default=None, description="bearer token for the planner service (role read)"
    )
    history_count: int = Field(
        default=500, ge=1, le=MAX_HISTORY_COUNT, description="past turns kept for each application"
    )
    history_age_seconds: float = Field(
        default=86_400.0, gt=0, description="age after which a past turn is forgotten, in s"
    )
    explained_turns: int = Field(
        default=60, ge=1, le=1_000, description="turns kept in full for `explain`: some 2 kB each"
    )
    events_kept: int = Field(default=20_000, ge=100, description="events of the feed that a client can resume from")
    events_megabytes: int = Field(
        default=16,
        ge=1,
        le=100_000,
        description="of Redis' memory for the feed: the oldest events go earlier where they need more",
    )
    event_streams: int = Field(
        default=100,
        ge=1,
        le=5_000,
        description="event streams open at once, each with a connection to Redis; more are answered 503",
    )
    known_characters: int = Field(
        default=16_000_000,
        ge=0,
        description="of states cached in memory, as JSON, not read for each message; in memory seven times that",
    )
    metrics_applications: int = Field(
        default=500, ge=0, description="applications that /metrics has series of, some 20 each and 10 for each operator"
    )
    metrics_operators: int = Field(default=50, ge=0, description="operators of each that it has series of")
    rebuild_seconds: float = Field(
        default=120.0,
        gt=0,
        description="the longest that reading one topic may take when an emptied Redis is rebuilt, in s",
    )

    lease_seconds: float = Field(
        default=10.0,
        ge=6,
        le=25,
        description="one replica publishes policies; when it vanishes, another takes over after this long, in s. Brokers "
        "take no less than 6 s by default",
    )
    forget_after_seconds: float = Field(
        default=3_600.0,
        ge=1,
        description="applications without a policy are ended and forgotten when nothing was heard of them for so long, in s",
    )

    @field_validator("redis_url")
    @classmethod
    def _an_address(cls, url: SecretStr) -> SecretStr:
        form = "must look like redis://host:6379/0 (or rediss://…)"
        try:
            parts = urlsplit(url.get_secret_value())
            usable = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
        except ValueError:
            raise ValueError(form) from None
        if not usable:
            raise ValueError(form)
        return url

    def terms(self) -> Terms:
        """How long the lease of the replica that publishes policies lasts; the others stand by for good."""
        return Terms("publisher", lease_seconds=self.lease_seconds, standby_seconds=inf)
