"""The planner's settings."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from runtime.addresses import Allowed
from runtime.settings import ServiceSettings, http_port

PLUGIN = "WEIR_PLANNER_PLUGIN"
"""What the settings of their addresses begin with."""


class PlannerSettings(ServiceSettings):
    """Settings of the planner: `WEIR_PLANNER_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_PLANNER_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8093)
    workers: int = Field(default=1, ge=1, le=64, description="processes that planners run in, next to the event loop")
    observations_kept: int = Field(
        default=30, ge=0, le=120, description="raw observations of each application a planner may look at, newest"
    )
    history_kept: int = Field(default=20, ge=0, le=50, description="past cycles of the loop that a planner may look at")
    plugin_schemes: str = Field(
        default="https", description="schemes that registered planners may be asked by, comma-separated: https, http"
    )
    plugin_hosts: str = Field(
        default="*",
        description="hosts that they may have, comma-separated: a name, *.example.org for all below it, * for any",
    )
    plugin_networks: str = Field(
        default="public",
        description="networks that their addresses may lie in, comma-separated: 10.0.0.0/8, public for all of the internet, private or "
        "loopback; what is not listed is refused",
    )
    plugin_ca_file: Path | None = Field(
        default=None, description="PEM file of further certificate authorities that their certificates may be signed by"
    )
    credentials_folder: Path | None = Field(
        default=None, description="folder of bearer tokens for them, one file each, named as registrations name them"
    )
    reply_bytes: int = Field(
        default=1_000_000, ge=1_000, le=50_000_000, description="the largest answer of theirs that is read, in bytes"
    )
    request_bytes: int = Field(
        default=8_000_000, ge=10_000, le=50_000_000, description="the largest request that is sent to them, in bytes"
    )

    shadows_share: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="share of an application's interval that all its shadow planners together may take",
    )
    shadows_queued: int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description="applications whose shadows may wait; more are left out and counted",
    )
    shadows_published_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3_600,
        description="between two messages about an application's shadows, in s: so much of them is lost with the process",
    )

    @model_validator(mode="after")
    def _readable_lists(self) -> Self:
        self.allowed()
        if self.plugin_ca_file is not None and not self.plugin_ca_file.is_file():
            raise ValueError(f"WEIR_PLANNER_PLUGIN_CA_FILE: {self.plugin_ca_file} is no file")
        if self.credentials_folder is not None and not self.credentials_folder.is_dir():
            raise ValueError(f"WEIR_PLANNER_CREDENTIALS_FOLDER: {self.credentials_folder} is no folder")
        return self

    def allowed(self) -> Allowed:
        """Where registered planners may be asked at."""
        try:
            return Allowed.of(self.plugin_schemes, self.plugin_hosts, self.plugin_networks, prefix=PLUGIN)
        except ValueError as error:
            raise ValueError(f"{PLUGIN}_SCHEMES, {PLUGIN}_NETWORKS: {error}") from None
