"""The monitor's settings."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from weir_runtime.policy_credentials import BrokerSettings, FlinkSettings
from weir_runtime.settings import KubernetesSettings, http_port


class MonitorSettings(KubernetesSettings, BrokerSettings, FlinkSettings):
    """Settings of the monitor: `WEIR_MONITOR_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_MONITOR_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8091)
    call_timeout_seconds: float = Field(
        default=2.0, gt=0, le=60, description="time limit of one call to a cluster or broker, in s"
    )
    scrape_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="time limit of a scrape, in s; after it the application counts as unreachable",
    )
