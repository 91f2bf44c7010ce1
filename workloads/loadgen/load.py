"""What is to be produced: the trace, and what was set over HTTP instead of it. Pure."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from .records import LEAST_BYTES, MOST_BYTES
from .trace import MOST_SKEW, LoadTrace

MOST_RATE = 1_000_000.0
DEFAULT_BYTES = 160

Rate = Annotated[float, Field(ge=0, le=MOST_RATE, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Skew = Annotated[float, Field(ge=0, le=MOST_SKEW, allow_inf_nan=False)]
RecordBytes = Annotated[int, Field(ge=LEAST_BYTES, le=MOST_BYTES)]


class LoadChange(BaseModel):
    """What a user sets; what is left out stays as it is. In `rate` null goes back to the trace."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"rate": 1200}, {"rate": None, "factor": 1.5}, {"paused": False}]},
    )

    rate: Rate | None = Field(None, description="records/s to hold instead of the trace; null: follow the trace")
    factor: Factor = Field(1.0, description="multiplies whatever rate there would be")
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
    """None: the trace's, as with the size of records."""
    record_bytes: int | None = None
    trace_seconds: float = 0.0
    """How long the load has run; stands still while paused."""

    def target_rate(self) -> float:
        """Records/s to produce at this moment."""
        if self.paused:
            return 0.0
        rate = self.trace.rate_at(self.trace_seconds) if self.rate is None else self.rate
        return rate * self.factor

    def skew_now(self) -> float:
        """Zipf's exponent of the keys at this moment."""
        wanted = self.trace.key_skew_at(self.trace_seconds) if self.key_skew is None else self.key_skew
        return 0.0 if wanted is None else wanted

    def bytes_now(self) -> int:
        """Size of a record's value at this moment."""
        wanted = self.trace.record_bytes_at(self.trace_seconds) if self.record_bytes is None else self.record_bytes
        return DEFAULT_BYTES if wanted is None else wanted

    def after(self, seconds: float) -> "Load":
        """The load that much later."""
        return self if self.paused else replace(self, trace_seconds=self.trace_seconds + max(0.0, seconds))

    def changed(self, change: LoadChange) -> "Load":
        """With what the change names."""
        named: dict[str, Any] = {name: getattr(change, name) for name in change.model_fields_set}
        return replace(self, **named)
