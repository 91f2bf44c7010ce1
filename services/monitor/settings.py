"""The monitor's settings."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from runtime.broker_credentials import BrokerSettings
from runtime.settings import KubernetesSettings, http_port


class MonitorSettings(KubernetesSettings, BrokerSettings):
    """Settings of the monitor: `WEIR_MONITOR_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_MONITOR_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8091)
    call_timeout_seconds: float = Field(
        default=2.0, gt=0, le=60, description="the longest one call to a cluster or broker may take, in s"
    )
    scrape_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="the longest a scrape may take, in s; then the application counts as unreachable",
    )
