"""Cost of the sample job's records, polled by the job once a second. Pure."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Operator = Literal["parse", "enrich", "aggregate", "sink"]
Microseconds = Annotated[float, Field(ge=0, le=10_000_000, allow_inf_nan=False)]
Contention = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Limit = Annotated[float, Field(ge=0.1, le=1e9, allow_inf_nan=False)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OperatorCost(_Document):
    """Cost of one operator's records. Null: the job's argument."""

    service_time_us: Microseconds | None = Field(None, description="time a record takes, in microseconds")
    contention: Contention | None = Field(None, description="s in capacity(p) = c·p / (1 + s·(p − 1))")


class Workload(_Document):
    """Costs that differ from the job's arguments. A change sets the fields it names; null restores the argument."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"operators": {"enrich": {"service_time_us": 500}}}, {"sink_limit_per_second": 900}]
        }
    )

    operators: dict[Operator, OperatorCost] = Field(default_factory=dict)
    sink_limit_per_second: Limit | None = Field(None, description="records/s all sink subtasks together may write")

    def changed(self, change: "Workload") -> "Workload":
        """Return the costs with the change applied."""
        operators = dict(self.operators)
        for name, cost in change.operators.items():
            before = operators.get(name, OperatorCost())
            operators[name] = before.model_copy(update={field: getattr(cost, field) for field in cost.model_fields_set})
        limited = "sink_limit_per_second" in change.model_fields_set
        limit = change.sink_limit_per_second if limited else self.sink_limit_per_second
        return Workload(operators=operators, sink_limit_per_second=limit)
