"""The monitor's settings."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from runtime.broker_credentials import BrokerCredentials, read_broker_credentials
from runtime.settings import KubernetesSettings, http_port, shared


class MonitorSettings(KubernetesSettings):
    """Settings of the monitor: `WEIR_MONITOR_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_MONITOR_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8091)
    broker_credentials_file: Path | None = shared(
        "broker_credentials_file",
        default=None,
        description="JSON file with TLS and SASL settings for policies' brokers, by name; each entry lists its servers",
    )
    call_timeout_seconds: float = Field(
        default=2.0, gt=0, le=60, description="the longest one call to a cluster or broker may take, in s"
    )
    scrape_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="the longest a scrape may take, in s; then the application counts as unreachable",
    )

    def broker_credentials(self) -> Mapping[str, BrokerCredentials]:
        """Return the credentials of brokers by name; `ValueError` that names the setting if they cannot be read."""
        return read_broker_credentials(self.broker_credentials_file)
