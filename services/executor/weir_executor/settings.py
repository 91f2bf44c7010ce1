"""The executor's settings: environment variables `WEIR_EXECUTOR_…`, in addition to those that every service shares."""

from collections.abc import Mapping
from functools import cached_property

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from weir_runtime.files import FollowedMapping
from weir_runtime.policy_credentials import (
    BrokerSettings,
    FlinkSettings,
    HttpCredential,
    followed_credentials,
    read_credentials,
)
from weir_runtime.reach import Reach
from weir_runtime.settings import KubernetesSettings, http_port

from .core.parameters import Rules, RuleSettings


class Settings(RuleSettings, KubernetesSettings, BrokerSettings, FlinkSettings):
    """The executor applies plans: it requests the parallelism, verifies that it runs, and rolls back if not."""

    model_config = SettingsConfigDict(env_prefix="WEIR_EXECUTOR_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8094)
    group: str = Field(
        default="weir-executor", min_length=1, max_length=200, description="consumer group that shares the plans"
    )
    target_timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="maximum wait for one response of a target, in seconds"
    )
    knowledge_timeout_seconds: float = Field(
        default=3.0, gt=0, le=60, description="maximum wait for one response of the knowledge service, in seconds"
    )

    endpoint_credentials: SecretStr = Field(
        default=SecretStr(""),
        description="credentials for the endpoints of policies by the name that policies use, as JSON: "
        '`{"name": {"namespaces": ["shop"], "origin": "https://host:port", "token": "…"}}`; a token is sent to its origin only, '
        "for policies of its namespaces",
    )

    @field_validator("endpoint_credentials")
    @classmethod
    def _readable_credentials(cls, value: SecretStr) -> SecretStr:
        read_credentials(value.get_secret_value())
        return value

    @cached_property
    def credentials(self) -> Mapping[str, HttpCredential]:
        """The credentials for endpoints by name; those of the folder of secrets as its file is now."""
        text, path = self.endpoint_credentials.get_secret_value(), self.secret_file("endpoint_credentials")
        if path is None or not text.strip():
            return read_credentials(text)
        return FollowedMapping(self.follow(followed_credentials(path, "WEIR_EXECUTOR_ENDPOINT_CREDENTIALS")))

    def reach(self) -> Reach:
        """Return what policies may name, with the credentials of this service."""
        places = ("target.endpoint", "target.flink.taskManagers.endpoint")
        reach = super().reach()
        for place in places:
            reach = reach.with_credentials(place, self.credentials)
        return reach

    def rules(self) -> Rules:
        """Return the parameters of decisions."""
        return Rules(**{name: getattr(self, name) for name in RuleSettings.model_fields})
