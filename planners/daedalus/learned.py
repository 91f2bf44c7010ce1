"""Parameters of `daedalus`, and its memory: capacities by parallelism, downtimes, minutes of load and how well they
were forecast."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from weir_planner import Request

from planners.answer import total


class DaedalusParameters(BaseModel):
    """Parameters of the planner, by default the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_up_seconds: float = Field(
        default=120.0, ge=0, le=86_400, description="age of a run up to which its readings are dropped, in s"
    )
    quiet_seconds: float = Field(
        default=180.0, ge=0, le=86_400, description="time after a rescale without a decision, in s"
    )
    settled_seconds: float = Field(
        default=600.0,
        ge=0,
        le=86_400,
        description="time after a rescale in which capacity that covers the load and the next minute is enough, in s",
    )
    recovery_seconds: float = Field(default=600.0, gt=0, le=86_400, description="longest allowed recovery, in s")
    forecast_minutes: int = Field(default=15, ge=1, le=60, description="how far the load is forecast, in minutes")
    history_minutes: int = Field(
        default=240, ge=10, le=360, description="minutes of load that are remembered and learned from"
    )
    order: int = Field(default=5, ge=1, le=15, description="number of past differences that the AR model uses")
    regression_minutes: int = Field(
        default=10, ge=2, le=60, description="minutes of load that the linear regression uses"
    )
    max_wape: float = Field(
        default=0.25,
        validation_alias=AliasChoices("max_wape", "highest_wape"),
        ge=0,
        le=1,
        description="error of the last AR forecast, as a share of the load, up to which the next one is trusted",
    )
    downtime_up_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="assumed downtime of a rescale up until one has been measured, in s"
    )
    downtime_down_seconds: float = Field(
        default=15.0, ge=0, le=3600, description="assumed downtime of a rescale down until one has been measured, in s"
    )
    checkpoint_seconds: float = Field(
        default=10.0, ge=0, le=3600, description="age of the last checkpoint if the engine does not report it, in s"
    )


MIN_SPREAD = 0.05
"""Spread of busy shares (largest − smallest) from which a slope is no noise."""
MIN_BUSY = 0.05
"""Busy share below which an operator gives no capacity."""
MAX_RATE = 1e12
"""Upper bound of rates in records/s: keeps garbage finite."""
MAX_CAPACITIES = 64
MAX_REGRESSIONS = 16
MIN_CAPACITY = 0.01
"""Records/s below which a capacity is a rounding error."""

_Sum = Annotated[float, Field(ge=0, le=1e30)]
_Rate = Annotated[float, Field(ge=0, le=2 * MAX_RATE)]


class Regression(BaseModel):
    """Sums of an online least squares of load y on busy share x."""

    model_config = ConfigDict(allow_inf_nan=False)

    n: _Sum = 0.0
    x: _Sum = 0.0
    y: _Sum = 0.0
    xx: _Sum = 0.0
    xy: _Sum = 0.0
    min_x: float = Field(default=1.0, ge=0, le=1, validation_alias=AliasChoices("min_x", "least"))
    max_x: float = Field(default=0.0, ge=0, le=1, validation_alias=AliasChoices("max_x", "most"))

    def add(self, x: float, y: float) -> "Regression":
        return Regression(
            n=self.n + 1,
            x=self.x + x,
            y=self.y + y,
            xx=self.xx + x * x,
            xy=self.xy + x * y,
            min_x=min(self.min_x, x),
            max_x=max(self.max_x, x),
        )

    def at(self, x: float) -> float | None:
        """Return the load at a busy share; None if unknown."""
        if self.n < 1 or self.x <= 0:
            return None
        spread = self.n * self.xx - self.x * self.x
        if self.max_x - self.min_x >= MIN_SPREAD and spread > 0:
            slope = (self.n * self.xy - self.x * self.y) / spread
            if slope > 0:
                load = (self.y - slope * self.x) / self.n + slope * x
                return load if load > 0 else None
        return self.y / self.x * x


class Memory(BaseModel):
    """Memory from cycle to cycle. Bounded: 12 KB with the largest rates and 360 minutes, usually 3."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run: str = ""
    """Which run the regressions are of."""
    replicas: int | None = Field(default=None, ge=1)
    since: float = Field(default=0.0, ge=0, le=1e11)
    """Unix time of when this parallelism was seen first; 0: it was always there."""
    began_by: Literal["", "up", "down"] = ""
    """up or down: the rescale whose downtime is not yet measured."""
    regressions: dict[str, Regression] = Field(default_factory=dict, max_length=MAX_REGRESSIONS)
    """By the operator's place in the graph."""
    capacities: dict[str, _Rate] = Field(default_factory=dict, max_length=MAX_CAPACITIES)
    """By parallelism."""
    minute: int = Field(default=0, ge=0, le=10**9)
    """The minute that `count` readings of `added` records/s together belong to."""
    added: float = Field(default=0.0, ge=0, le=1e18)
    count: int = Field(default=0, ge=0, le=10**6)
    minutes: list[_Rate] = Field(default_factory=list, max_length=360)
    """Mean load of the minutes before it, oldest first."""
    predicted_at: int = Field(default=0, ge=0, le=10**9, validation_alias=AliasChoices("predicted_at", "foreseen_at"))
    predicted: list[_Rate] = Field(
        default_factory=list, max_length=60, validation_alias=AliasChoices("predicted", "foreseen")
    )
    """The AR forecast that is being judged, from the minute `predicted_at` on."""
    wape: float | None = Field(default=None, ge=0, le=1e6)
    up: float | None = Field(default=None, ge=0, le=86_400)
    down: float | None = Field(default=None, ge=0, le=86_400)
    """Measured downtimes, in s."""


def noticed(request: Request, memory: Memory, parameters: DaedalusParameters, load: float | None) -> Memory:
    """Return the memory with this cycle's readings."""
    analysis, now = request.analysis, request.now.timestamp()
    replicas = request.replicas
    update: dict[str, Any] = {}
    run = "" if analysis.run is None else f"{analysis.run.attempt} {analysis.run.running_since.isoformat()}"
    if run != memory.run or replicas != memory.replicas:
        update |= {"run": run, "regressions": {}}
    if memory.replicas is not None and replicas != memory.replicas:
        update |= {"since": now, "began_by": "up" if replicas > memory.replicas else "down"}
    update["replicas"] = replicas
    memory = memory.model_copy(update=update)
    memory = _with_downtime(memory, analysis.restart_times.last_seconds, parameters)
    if load is None or analysis.status != "running":
        return memory
    load = min(load, MAX_RATE)
    memory = _with_minute(memory, now, load, parameters)
    began = None if analysis.run is None else analysis.run.running_since.timestamp()
    started = memory.since if began is None else max(began, memory.since)
    if now - started < parameters.warm_up_seconds or analysis.has("catching-up"):
        return memory
    return _with_capacity(request, memory)


def _with_downtime(memory: Memory, measured: float | None, parameters: DaedalusParameters) -> Memory:
    """One second toward what the rescale took, once its run has been observed."""
    if not memory.began_by or measured is None or memory.regressions:
        return memory
    up = memory.began_by == "up"
    learned, usual = (
        (memory.up, parameters.downtime_up_seconds) if up else (memory.down, parameters.downtime_down_seconds)
    )
    value = usual if learned is None else learned
    value += max(-1.0, min(1.0, measured - value))
    return memory.model_copy(update={memory.began_by: value, "began_by": ""})


def _with_minute(memory: Memory, now: float, load: float, parameters: DaedalusParameters) -> Memory:
    minute = int(now // 60)
    if memory.count and minute == memory.minute:
        return memory.model_copy(update={"added": round(memory.added + load, 2), "count": memory.count + 1})
    minutes = list(memory.minutes)
    if memory.count:
        mean = memory.added / memory.count
        # A minute without a reading is taken to be as the one before it; after an hour of them the history is useless.
        missed = minute - memory.minute
        minutes = [*minutes, *[round(mean, 2)] * missed] if 0 < missed <= 60 else []
    memory = memory.model_copy(
        update={
            "minute": minute,
            "added": round(load, 2),
            "count": 1,
            "minutes": minutes[-parameters.history_minutes :],
        }
    )
    return _with_forecast(memory, parameters)


def _with_forecast(memory: Memory, parameters: DaedalusParameters) -> Memory:
    """Score the current AR forecast by the minutes since; make the next one when it ends."""
    passed = memory.minute - memory.predicted_at
    actual = memory.minutes[-passed:] if 0 < passed <= len(memory.minutes) else []
    predicted = memory.predicted[: len(actual)]
    if predicted and sum(actual[: len(predicted)]) > 0:
        error = sum(abs(a - f) for a, f in zip(actual, predicted, strict=False)) / sum(actual[: len(predicted)])
        memory = memory.model_copy(update={"wape": round(min(error, 1e6), 4)})
    if memory.predicted and 0 < passed < len(memory.predicted):
        return memory
    forecast = autoregressive(memory.minutes, parameters.order, parameters.forecast_minutes)
    return memory.model_copy(update={"predicted_at": memory.minute, "predicted": [round(f, 2) for f in forecast or []]})


def _with_capacity(request: Request, memory: Memory) -> Memory:
    """The regressions with this cycle's reading, and the capacity of the present parallelism by them."""
    analysis = request.analysis
    taken = total([o.input_rate.value for o in analysis.operators if o.operator in request.topology.sources])
    if taken is None or taken <= 0:
        return memory
    taken = min(taken, MAX_RATE)
    shares = {
        o.operator: o for o in analysis.operators if o.utilization.value is not None and o.operator in request.current
    }
    busiest = sorted(shares, key=lambda name: -(shares[name].utilization.value or 0.0))[:MAX_REGRESSIONS]
    place = {name: str(i) for i, name in enumerate(request.topology.names)}
    regressions: dict[str, Regression] = {}
    sustained = []
    for name in busiest:
        mean = min(1.0, max(0.0, shares[name].utilization.value or 0.0))
        if mean < MIN_BUSY:
            continue
        skew = shares[name].skew.value
        hottest = min(1.0, mean * max(1.0, 1.0 if skew is None else skew))
        regression = memory.regressions.get(place[name], Regression()).add(mean, taken)
        regressions[place[name]] = regression
        full = regression.at(1 - (hottest - mean))
        if full is not None and full >= MIN_CAPACITY:
            sustained.append(full)
    if not sustained:
        return memory.model_copy(update={"regressions": regressions})
    key, newest = str(request.replicas), min(MAX_RATE, *sustained)
    capacities = dict(memory.capacities)
    before = capacities.pop(key, None)
    capacities[key] = round(newest if before is None else (before + newest) / 2, 3)
    capacities = dict(list(capacities.items())[-MAX_CAPACITIES:])
    return memory.model_copy(update={"regressions": regressions, "capacities": capacities})


def is_ar(memory: Memory, parameters: DaedalusParameters) -> bool:
    return memory.wape is not None and memory.wape < parameters.max_wape


def forecast_of(memory: Memory, parameters: DaedalusParameters, load: float) -> list[float]:
    """The load of each of the next minutes."""
    history = [*memory.minutes, memory.added / memory.count] if memory.count else [*memory.minutes, load]
    if is_ar(memory, parameters):
        forecast = autoregressive(history, parameters.order, parameters.forecast_minutes)
        if forecast is not None:
            return forecast
    return linear(history[-parameters.regression_minutes :], parameters.forecast_minutes)


def autoregressive(history: list[float], order: int, minutes: int) -> list[float] | None:
    """ARIMA(order, 1, 0) by least squares: the next differences from the last `order`. None while there is too little
    to learn from.

    Kept between 0 and twice the highest load known: an unstable fit would run away.
    """
    differences = np.diff(np.array(history, dtype=float))
    rows = len(differences) - order
    if rows < 2 * (order + 1):
        return None
    scale = float(np.abs(differences).max())
    if scale <= 0:
        return [history[-1]] * minutes
    differences /= scale
    matrix = np.array([[1.0, *differences[i : i + order]] for i in range(rows)])
    weights, *_ = np.linalg.lstsq(matrix, differences[order:], rcond=None)
    last, value, maximum = list(differences[-order:]), history[-1], 2 * max(history)
    forecasts = []
    for _ in range(minutes):
        # No difference is larger than the load: an unstable fit cannot overflow in later minutes.
        step = float(np.clip(weights[0] + weights[1:] @ np.array(last), -maximum / scale, maximum / scale))
        last = [*last[1:], step]
        value = min(maximum, max(0.0, value + step * scale))
        forecasts.append(value)
    return forecasts


def linear(history: list[float], minutes: int) -> list[float]:
    """A straight line through the last minutes, continued; never below 0. One minute is a level."""
    n = len(history)
    if n < 2:
        return [history[-1]] * minutes
    middle, mean = (n - 1) / 2, sum(history) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(history)) / spread
    return [max(0.0, mean + slope * (n + i - middle)) for i in range(minutes)]
