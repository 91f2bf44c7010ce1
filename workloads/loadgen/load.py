"""Load to produce: the trace, and the overrides set over HTTP. Pure."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from weir_replay.trace import MAX_BYTES, MAX_SKEW, MIN_BYTES, LoadTrace

MAX_RATE = 1_000_000.0
DEFAULT_BYTES = 160

Rate = Annotated[float, Field(ge=0, le=MAX_RATE, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Skew = Annotated[float, Field(ge=0, le=MAX_SKEW, allow_inf_nan=False)]
RecordBytes = Annotated[int, Field(ge=MIN_BYTES, le=MAX_BYTES)]


class LoadChange(BaseModel):
    """Change of the load by a user; an omitted field stays. A `rate` of null restores the trace."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"rate": 1200}, {"rate": None, "factor": 1.5}, {"paused": False}]},
    )

    rate: Rate | None = Field(None, description="records/s to hold instead of the trace; null: follow the trace")
    factor: Factor = Field(1.0, description="multiplies the rate")
    paused: bool = Field(False, description="true: produce nothing and stop the trace's time")
    key_skew: Skew | None = Field(
        None, description="Zipf's exponent of the keys, 0 is uniform; null: the trace's, else 0"
    )
    record_bytes: RecordBytes | None = Field(None, description="size of a record's value; null: the trace's, else 160")


@dataclass(frozen=True)
class Load:
    """The load in force. Rates in records/s."""

    trace: LoadTrace
    rate: float | None = None
    """None: the trace's."""
    factor: float = 1.0
    paused: bool = False
    key_skew: float | None = None
    """None: the trace's; the same for `record_bytes`."""
    record_bytes: int | None = None
    trace_seconds: float = 0.0
    """How long the load has run; stands still while paused."""

    def target_rate(self) -> float:
        """Return the records/s to produce now."""
        if self.paused:
            return 0.0
        rate = self.trace.rate_at(self.trace_seconds) if self.rate is None else self.rate
        return rate * self.factor

    def skew_now(self) -> float:
        """Return Zipf's exponent of the keys now."""
        wanted = self.trace.key_skew_at(self.trace_seconds) if self.key_skew is None else self.key_skew
        return 0.0 if wanted is None else wanted

    def bytes_now(self) -> int:
        """Return the size of a record's value now."""
        wanted = self.trace.record_bytes_at(self.trace_seconds) if self.record_bytes is None else self.record_bytes
        return DEFAULT_BYTES if wanted is None else wanted

    def after(self, seconds: float) -> "Load":
        """Return the load `seconds` later."""
        return self if self.paused else replace(self, trace_seconds=self.trace_seconds + max(0.0, seconds))

    def changed(self, change: LoadChange) -> "Load":
        named: dict[str, Any] = {name: getattr(change, name) for name in change.model_fields_set}
        return replace(self, **named)
