"""What is to be produced: the trace, and what was set over HTTP instead of it. Pure."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from .records import MOST_BYTES
from .trace import LoadTrace

MOST_RATE = 1_000_000.0
MOST_SKEW = 5.0

Rate = Annotated[float, Field(ge=0, le=MOST_RATE, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Skew = Annotated[float, Field(ge=0, le=MOST_SKEW, allow_inf_nan=False)]
RecordBytes = Annotated[int, Field(ge=32, le=MOST_BYTES)]


class LoadChange(BaseModel):
    """What a user sets; what is left out stays as it is. In `rate` null goes back to the trace."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"examples": [{"rate": 1200}, {"rate": None, "factor": 1.5}, {"paused": False}]},
    )

    rate: Rate | None = Field(None, description="records/s to hold instead of the trace; null: follow the trace")
    factor: Factor = Field(1.0, description="multiplies whatever rate there would be")
    paused: bool = Field(False, description="true: produce nothing and stop the trace's time")
    key_skew: Skew = Field(0.0, description="Zipf's exponent of the keys; 0 is uniform")
    record_bytes: RecordBytes = Field(160, description="size of a record's value")


@dataclass(frozen=True)
class Load:
    """The load in force. Rates in records/s."""

    trace: LoadTrace
    rate: float | None = None
    """None: the trace's."""
    factor: float = 1.0
    paused: bool = False
    key_skew: float = 0.0
    record_bytes: int = 160
    trace_seconds: float = 0.0
    """How long the load has run; stands still while paused."""

    def target_rate(self) -> float:
        """Records/s to produce at this moment."""
        if self.paused:
            return 0.0
        rate = self.trace.rate_at(self.trace_seconds) if self.rate is None else self.rate
        return rate * self.factor

    def after(self, seconds: float) -> "Load":
        """The load that much later."""
        return self if self.paused else replace(self, trace_seconds=self.trace_seconds + max(0.0, seconds))

    def changed(self, change: LoadChange) -> "Load":
        """With what the change names."""
        named: dict[str, Any] = {name: getattr(change, name) for name in change.model_fields_set}
        return replace(self, **named)
