"""The planner's settings."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from weir_runtime.reach import Allowed
from weir_runtime.settings import ServiceSettings, http_port

PLUGIN = "WEIR_PLANNER_PLUGIN"
"""What the settings of their addresses begin with."""


class PlannerSettings(ServiceSettings):
    """Settings of the planner: `WEIR_PLANNER_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_PLANNER_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8093)
    workers: int = Field(default=1, ge=1, le=64, description="number of planner processes")
    observations_kept: int = Field(
        default=30, ge=0, le=120, description="newest raw observations of the application in a planner's request"
    )
    history_kept: int = Field(default=20, ge=0, le=50, description="past cycles of the loop in a planner's request")
    plugin_schemes: str = Field(
        default="https",
        description="schemes that addresses of registered planners may have, comma-separated: https, http",
    )
    plugin_hosts: str = Field(
        default="*",
        description="hosts that registered planners may have, comma-separated: a name, *.example.org for all below it, * for any",
    )
    plugin_networks: str = Field(
        default="public",
        description="networks that addresses of registered planners may lie in, comma-separated: 10.0.0.0/8, public for all of the "
        "internet, private or loopback; others are refused",
    )
    plugin_ca_file: Path | None = Field(
        default=None, description="PEM file of further certificate authorities of registered planners"
    )
    credentials_folder: Path | None = Field(
        default=None,
        description="folder of bearer tokens for registered planners, one file for each `credential` of a registration",
    )
    reply_bytes: int = Field(
        default=1_000_000,
        ge=1_000,
        le=50_000_000,
        description="maximum size of a registered planner's response, in bytes",
    )
    request_bytes: int = Field(
        default=8_000_000,
        ge=10_000,
        le=50_000_000,
        description="maximum size of a request to a registered planner, in bytes",
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
