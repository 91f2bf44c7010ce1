"""The executor's settings: environment variables `WEIR_EXECUTOR_…`, in addition to those that every service shares."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from runtime.settings import TargetSettings, http_port

from .core import Rules


class Settings(TargetSettings):
    """The executor applies plans: it asks the engine, verifies that the new parallelism runs, and rolls back if not."""

    model_config = SettingsConfigDict(env_prefix="WEIR_EXECUTOR_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8094)
    group: str = Field(
        default="weir-executor", min_length=1, max_length=200, description="consumer group that shares the plans"
    )
    target_timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="longest wait for one answer of a target, in seconds"
    )
    knowledge_timeout_seconds: float = Field(
        default=3.0, gt=0, le=60, description="longest wait for one answer of the knowledge service, in seconds"
    )
    settle_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="time the new parallelism must run without a restart before it counts as verified, in seconds",
    )
    deadline_floor_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="least time a rescale gets to run, whatever the cluster's own settings add up to, in seconds",
    )
    container_start_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="further time for a rescale by containers (target docker), which have to start first, in seconds",
    )
    request_patience_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="how long a request without an answer is repeated, until the plan expires at most, in seconds",
    )
    restart_loop: int = Field(
        default=3, ge=1, le=1000, description="restarts beyond the rescale's own that count as a restart loop"
    )
    restart_loop_seconds: float = Field(
        default=20.0, ge=0, le=3600, description="least time from the request that a restart loop lasts, in seconds"
    )
    capacity_share: float = Field(
        default=0.9, gt=0, le=1, description="roll back if capacity falls under this share of what it was before"
    )
    capacity_window_seconds: float = Field(
        default=30.0, gt=0, le=3600, description="least length of a warm window to judge capacity by, in seconds"
    )
    capacity_watch_seconds: float = Field(
        default=120.0,
        ge=0,
        le=86400,
        description="time after verification in which a warm window may still lead to a rollback, in seconds",
    )
    quarantine_first_seconds: float = Field(
        default=300.0, gt=0, le=86400, description="quarantine after a first rollback, doubling with each, in seconds"
    )
    quarantine_longest_seconds: float = Field(
        default=7200.0, gt=0, le=604800, description="longest quarantine of a parallelism, in seconds"
    )
    max_actions: int = Field(
        default=10, ge=1, le=10000, description="actions in flight at once, over all applications and replicas"
    )
    max_actions_per_cluster: int = Field(
        default=2,
        ge=1,
        le=10000,
        description="actions in flight at once on one cluster, over all replicas: each restarts a job there",
    )
    fleet_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="hold scale-downs if this share of applications began to want less at the same time",
    )
    fleet_least: int = Field(
        default=5, ge=1, le=100000, description="fewer applications than this that want less never hold each other"
    )
    fleet_window_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="what `at the same time` means for those that want less, in seconds"
    )
    fleet_hold_seconds: float = Field(
        default=600.0,
        ge=0,
        le=86400,
        description="how long a scale-down is held for it, from when the application began to want less; 0: never",
    )

    docker_projects: str = Field(
        default="",
        max_length=4000,
        pattern=r"^\s*([a-z0-9][a-z0-9_-]*(\s*,\s*[a-z0-9][a-z0-9_-]*)*)?\s*$",
        description="compose projects whose containers may be made and removed for docker targets, comma-separated; empty: none, and no "
        "connection to Docker",
    )
    docker_host: str = Field(
        default="unix:///var/run/docker.sock",
        pattern=r"^(unix:///|tcp://[^\s/@]+:\d+$)",
        max_length=300,
        description="where Docker listens, unix:///path or tcp://host:port; a client of it is root on that machine",
    )
    docker_timeout_seconds: int = Field(
        default=10,
        ge=1,
        le=120,
        description="longest wait for one answer of Docker, in seconds; to stop a container, in addition to its grace period",
    )

    @property
    def docker_allowed(self) -> frozenset[str]:
        """The compose projects that may be touched."""
        return frozenset(name.strip() for name in self.docker_projects.split(",") if name.strip())

    def rules(self) -> Rules:
        """The part of the settings that decisions are made by."""
        names = Rules.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return Rules(**{name: getattr(self, name) for name in names})
