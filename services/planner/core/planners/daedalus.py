"""The planner `daedalus`: one parallelism for the whole application, by capacity, forecast and predicted recovery.

Pfister, Scheinert, Geldenhuys, Kao, "Daedalus: Self-Adaptive Horizontal Autoscaling for Resource Efficiency of Distributed Stream
Processing Systems", ICPE 2024. With W the load (records/s at all sources) and C(p) the load that a parallelism p sustains:

    capacity now   W regressed on the busy share u of each operator, W = a + b·u by least squares over the run after its warm-up, told
                   at u = 1 − (h − u), h the busy share of the hottest subtask (skew); the application's is the smallest
    capacity at p  observed if p was run (mean of the old value and the newest), else p · C(now) / p(now)
    forecast       15 minutes of W: AR on the differences of its minutes by least squares while the WAPE of the last one is below 25 %,
                   else linear regression over the last minutes
    no action      within 180 s of a rescale; within 600 s if C(now) covers W and the next minute's forecast
    choice         the smallest p with C(p) > W; recovery(p) ≤ 600 s; C(p) ≥ the highest forecast up to recovery; and, if p is not what
                   runs, C(p) > the whole forecast, and, going down, a backlog of at most one second of C(now). If none: the largest
    recovery       downtime + the time in which C(p) − forecast works off: W since the last checkpoint + the forecast for the
                   downtime + lag. Staying has neither downtime nor anything to do again
    downtime       of each direction (30 s up, 15 s down), moved by one second toward what was observed after each rescale

Otherwise than in the paper: the regression is of operators, because the contract has no readings of subtasks (theirs is of
TaskManagers, whose capacities they add), and a spread of u below 0.05 gives W/u, since a slope would be noise; the AR model is fitted
anew at each evaluation, so nothing has to be retrained after 15 misses; the policy's interval is the time between evaluations.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from weir_contracts import Infeasible, PlanReply, PlanRequest
from weir_contracts.planning import Number

from predictor.words import changes

from .present import Present, missing, present_of, reply_of, total

LEAST_SPREAD = 0.05
"""Of busy shares (largest − smallest) for a slope to mean something."""
LEAST_BUSY = 0.05
"""An operator that is busy for less says nothing of when it is full."""
MOST_RATE = 1e12
"""Records/s that nothing exceeds: keeps garbage finite."""
MOST_CAPACITIES = 64
MOST_REGRESSIONS = 16
LEAST_CAPACITY = 0.01
"""Records/s below which a told capacity is a rounding error."""

_Sum = Annotated[float, Field(ge=0, le=1e30)]
_Rate = Annotated[float, Field(ge=0, le=2 * MOST_RATE)]


class DaedalusParameters(BaseModel):
    """The planner's own settings, by default the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_up_seconds: float = Field(
        default=120.0, ge=0, le=86_400, description="age of a run up to which its readings are dropped, in s"
    )
    quiet_seconds: float = Field(
        default=180.0, ge=0, le=86_400, description="time after a rescale in which nothing is done, in s"
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
        default=240, ge=10, le=360, description="minutes of load that are remembered and learnt from"
    )
    order: int = Field(default=5, ge=1, le=15, description="differences that the AR model looks back at")
    regression_minutes: int = Field(default=10, ge=2, le=60, description="minutes of the linear regression")
    highest_wape: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="error of the last AR forecast over the load up to which the next is believed",
    )
    downtime_up_seconds: float = Field(default=30.0, ge=0, le=3600, description="of a rescale up, before one was seen")
    downtime_down_seconds: float = Field(
        default=15.0, ge=0, le=3600, description="of a rescale down, before one was seen"
    )
    checkpoint_seconds: float = Field(
        default=10.0, ge=0, le=3600, description="age of the last checkpoint where the engine does not tell it, in s"
    )


class _Regression(BaseModel):
    """Sums of an online least squares of load y on busy share x."""

    model_config = ConfigDict(allow_inf_nan=False)

    n: _Sum = 0.0
    x: _Sum = 0.0
    y: _Sum = 0.0
    xx: _Sum = 0.0
    xy: _Sum = 0.0
    least: float = Field(default=1.0, ge=0, le=1)
    most: float = Field(default=0.0, ge=0, le=1)

    def add(self, x: float, y: float) -> "_Regression":
        return _Regression(
            n=self.n + 1,
            x=self.x + x,
            y=self.y + y,
            xx=self.xx + x * x,
            xy=self.xy + x * y,
            least=min(self.least, x),
            most=max(self.most, x),
        )

    def at(self, x: float) -> float | None:
        """What is told of a busy share; None if nothing can be."""
        if self.n < 1 or self.x <= 0:
            return None
        spread = self.n * self.xx - self.x * self.x
        if self.most - self.least >= LEAST_SPREAD and spread > 0:
            slope = (self.n * self.xy - self.x * self.y) / spread
            if slope > 0:
                told = (self.y - slope * self.x) / self.n + slope * x
                return told if told > 0 else None
        return self.y / self.x * x


class _Memory(BaseModel):
    """What is remembered from turn to turn. Bounded: 12 KB with the largest rates and 360 minutes, usually 3."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run: str = ""
    """Which run the regressions are of."""
    replicas: int | None = Field(default=None, ge=1)
    since: float = Field(default=0.0, ge=0, le=1e11)
    """Unix time of when this parallelism was seen first; 0: it was always there."""
    began_by: Literal["", "up", "down"] = ""
    """up or down: the rescale whose downtime is still to be learnt."""
    regressions: dict[str, _Regression] = Field(default_factory=dict, max_length=MOST_REGRESSIONS)
    """By the operator's place in the graph."""
    capacities: dict[str, _Rate] = Field(default_factory=dict, max_length=MOST_CAPACITIES)
    """By parallelism."""
    minute: int = Field(default=0, ge=0, le=10**9)
    """The minute that `count` readings of `added` records/s together belong to."""
    added: float = Field(default=0.0, ge=0, le=1e18)
    count: int = Field(default=0, ge=0, le=10**6)
    minutes: list[_Rate] = Field(default_factory=list, max_length=360)
    """Mean load of the minutes before it, oldest first."""
    foreseen_at: int = Field(default=0, ge=0, le=10**9)
    foreseen: list[_Rate] = Field(default_factory=list, max_length=60)
    """The AR forecast that is being judged, from the minute `foreseen_at` on."""
    wape: float | None = Field(default=None, ge=0, le=1e6)
    up: float | None = Field(default=None, ge=0, le=86_400)
    down: float | None = Field(default=None, ge=0, le=86_400)
    """Downtimes learnt, in s."""


@dataclass(frozen=True)
class _Case:
    present: Present
    parameters: DaedalusParameters
    now: float
    load: float
    lag_records: float
    checkpoint_seconds: float
    capacity: float
    forecast: list[float]
    memory: _Memory

    def capacity_at(self, p: int) -> float:
        if p == self.present.replicas:
            return self.capacity
        return self.memory.capacities.get(str(p), p * self.capacity / self.present.replicas)

    def downtime(self, p: int) -> float:
        """0 for staying."""
        now = self.present.replicas
        if p == now:
            return 0.0
        learnt, usual = (
            (self.memory.up, self.parameters.downtime_up_seconds)
            if p > now
            else (self.memory.down, self.parameters.downtime_down_seconds)
        )
        return usual if learnt is None else learnt

    def foreseen(self, seconds: float) -> float:
        """The highest load forecast within so many seconds."""
        return max(self.forecast[: max(1, math.ceil(min(seconds, 60.0 * len(self.forecast)) / 60))])

    def recovery(self, p: int) -> float:
        """Seconds until nothing waits that did not have to; infinite if never."""
        downtime = self.downtime(p)
        again = self.load * self.checkpoint_seconds if downtime else 0.0
        waiting = self.lag_records + again + self._between(0.0, downtime)
        capacity, at = self.capacity_at(p), downtime
        while waiting > 0 and at < 60.0 * len(self.forecast):
            step = 60.0 - at % 60.0
            spare = capacity - self.forecast[min(len(self.forecast) - 1, int(at // 60))]
            if spare > 0 and waiting <= spare * step:
                return at + waiting / spare
            waiting -= spare * step
            at += step
        if waiting <= 0:
            return at
        spare = capacity - self.forecast[-1]
        return at + waiting / spare if spare > 0 else math.inf

    def _between(self, since: float, until: float) -> float:
        """Records forecast to arrive between two times, in s from now."""
        arriving, at = 0.0, since
        while at < until:
            step = min(60.0 - at % 60.0, until - at)
            arriving += self.forecast[min(len(self.forecast) - 1, int(at // 60))] * step
            at += step
        return arriving


def plan_by_daedalus(request: PlanRequest, parameters: DaedalusParameters) -> PlanReply:
    """The answer to one request; see the module."""
    memory = _remembered(request)
    present = present_of(request, memory.model_dump(exclude_defaults=True))
    if isinstance(present, PlanReply):
        return present
    analysis = request.analysis
    load = total([source.arrival_rate.value for source in analysis.sources])
    memory = _noticed(request, present, memory, parameters, load)
    kept = memory.model_dump(exclude_defaults=True)
    if load is None or set(present.topology.sources) != {source.operator for source in analysis.sources}:
        silent = [s for s in analysis.sources if s.arrival_rate.value is None]
        why = silent[0].arrival_rate.basis if silent else "not every source was analysed"
        return missing(f"the arrival rate of {silent[0].operator if silent else 'a source'}", why, kept)
    lag = total([source.lag_records.value for source in analysis.sources])
    if lag is None:
        return missing("the lag of a source", "what waits decides how long recovery takes", kept)
    if _is_new(request, memory, parameters):
        age = request.now.timestamp() - memory.since
        sentence = f"the application has had this parallelism for {age:.0f} s, and nothing is done for {parameters.quiet_seconds:.0f} s"
        return reply_of(present, None, "after-rescale", sentence, {}, kept)
    capacity = memory.capacities.get(str(present.replicas))
    if capacity is None:
        sentence = f"no capacity is known yet: it takes readings of a run older than {parameters.warm_up_seconds:.0f} s"
        return reply_of(present, None, "warming-up", sentence, {}, kept)
    load = min(load, MOST_RATE)
    forecast = _forecast(memory, parameters, load)
    case = _Case(
        present=present,
        parameters=parameters,
        now=request.now.timestamp(),
        load=load,
        lag_records=min(lag, MOST_RATE),
        checkpoint_seconds=_checkpoint_seconds(request, parameters),
        capacity=capacity,
        forecast=forecast,
        memory=memory,
    )
    return _chosen(case)


def _is_new(request: PlanRequest, memory: _Memory, parameters: DaedalusParameters) -> bool:
    """Whether the present parallelism was begun only just now."""
    return memory.since > 0 and request.now.timestamp() - memory.since < parameters.quiet_seconds


def _chosen(case: _Case) -> PlanReply:
    present, parameters, now = case.present, case.parameters, case.present.replicas
    next_minute = case.forecast[0]
    facts: dict[str, Number] = {
        "load_records_per_second": case.load,
        "capacity_records_per_second": case.capacity,
        "forecast_next_minute_records_per_second": next_minute,
        "forecast_highest_records_per_second": max(case.forecast),
        "forecast_wape": case.memory.wape,
        "forecast_is_ar": _is_ar(case.memory, parameters),
        "lag_records": case.lag_records,
    }
    kept = case.memory.model_dump(exclude_defaults=True)
    age = case.now - case.memory.since if case.memory.since > 0 else math.inf
    if age < parameters.settled_seconds and case.capacity > case.load and case.capacity > next_minute:
        sentence = f"{now} sustain {case.capacity:,.0f} records/s, the load is {case.load:,.0f} and {next_minute:,.0f} in a minute"
        return reply_of(present, None, "covered", sentence, facts, kept)
    least = min(low for low, _ in present.limits.values())
    fit = next((p for p in range(least, present.most_replicas + 1) if _fits(case, p)), None)
    wanted = present.most_replicas if fit is None else fit
    if fit is None:
        because = f"no parallelism up to {wanted} is forecast to keep up and recover within {parameters.recovery_seconds:.0f} s"
        present.infeasible.append(Infeasible(limit=float(wanted), code="bounds", because=because))
    recovery, capacity = case.recovery(wanted), case.capacity_at(wanted)
    facts |= {"chosen_capacity_records_per_second": capacity, "chosen_recovery_seconds": recovery}
    outlook = f"recovers in {recovery:.0f} s" if math.isfinite(recovery) else "never works off what waits"
    needs = f"{case.load:,.0f} records/s arrive and {max(case.forecast):,.0f} are forecast; {wanted} sustain {capacity:,.0f} and {outlook}"
    if wanted == now:
        code = "held" if fit is not None else "nothing-helps"
        return reply_of(present, None, code, f"{wanted} are right: {needs}", facts, kept)
    vector = present.uniform(wanted)
    code = "overloaded" if wanted > now else "over-provisioned"
    return reply_of(present, vector, code, f"{changes(present.current, vector)}: {needs}", facts, kept)


def _fits(case: _Case, p: int) -> bool:
    capacity = case.capacity_at(p)
    if capacity <= case.load:
        return False
    recovery = case.recovery(p)
    if recovery > case.parameters.recovery_seconds or capacity < case.foreseen(recovery):
        return False
    if p == case.present.replicas:
        return True
    if capacity <= max(case.forecast):
        return False
    return p > case.present.replicas or case.lag_records <= case.capacity


def _checkpoint_seconds(request: PlanRequest, parameters: DaedalusParameters) -> float:
    points = request.deployment.checkpoints if request.deployment else None
    if points is None:
        return parameters.checkpoint_seconds
    if points.last_completed_at is not None:
        age = max(0.0, (request.now - points.last_completed_at).total_seconds())
        return min(age, 3600.0)
    return parameters.checkpoint_seconds if points.interval_seconds is None else min(points.interval_seconds, 3600.0)


# -- what is learnt -----------------------------------------------------------------------------------------------


def _remembered(request: PlanRequest) -> _Memory:
    """What the last turn left; another version's, or a damaged one, is none."""
    try:
        return _Memory.model_validate(request.memory)
    except ValidationError:
        return _Memory()


def _noticed(
    request: PlanRequest, present: Present, memory: _Memory, parameters: DaedalusParameters, load: float | None
) -> _Memory:
    """The memory with this turn's readings."""
    analysis, now = request.analysis, request.now.timestamp()
    replicas = present.replicas
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
    load = min(load, MOST_RATE)
    memory = _with_minute(memory, now, load, parameters)
    began = None if analysis.run is None else analysis.run.running_since.timestamp()
    started = memory.since if began is None else max(began, memory.since)
    if now - started < parameters.warm_up_seconds or analysis.has("catching-up"):
        return memory
    return _with_capacity(request, present, memory)


def _with_downtime(memory: _Memory, seen: float | None, parameters: DaedalusParameters) -> _Memory:
    """One second toward what the rescale took, once its run has been seen."""
    if not memory.began_by or seen is None or memory.regressions:
        return memory
    up = memory.began_by == "up"
    known, usual = (
        (memory.up, parameters.downtime_up_seconds) if up else (memory.down, parameters.downtime_down_seconds)
    )
    value = usual if known is None else known
    value += max(-1.0, min(1.0, seen - value))
    return memory.model_copy(update={memory.began_by: value, "began_by": ""})


def _with_minute(memory: _Memory, now: float, load: float, parameters: DaedalusParameters) -> _Memory:
    minute = int(now // 60)
    if memory.count and minute == memory.minute:
        return memory.model_copy(update={"added": round(memory.added + load, 2), "count": memory.count + 1})
    minutes = list(memory.minutes)
    if memory.count:
        mean = memory.added / memory.count
        # A minute without a reading is taken to be as the one before it; after an hour of them the past tells nothing.
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


def _with_forecast(memory: _Memory, parameters: DaedalusParameters) -> _Memory:
    """Judge the AR forecast that is being judged by the minutes that have gone by; make the next when it is over."""
    passed = memory.minute - memory.foreseen_at
    actual = memory.minutes[-passed:] if 0 < passed <= len(memory.minutes) else []
    told = memory.foreseen[: len(actual)]
    if told and sum(actual[: len(told)]) > 0:
        error = sum(abs(a - f) for a, f in zip(actual, told, strict=False)) / sum(actual[: len(told)])
        memory = memory.model_copy(update={"wape": round(min(error, 1e6), 4)})
    if memory.foreseen and 0 < passed < len(memory.foreseen):
        return memory
    forecast = autoregressive(memory.minutes, parameters.order, parameters.forecast_minutes)
    return memory.model_copy(update={"foreseen_at": memory.minute, "foreseen": [round(f, 2) for f in forecast or []]})


def _with_capacity(request: PlanRequest, present: Present, memory: _Memory) -> _Memory:
    """The regressions with this turn's reading, and the capacity of the present parallelism by them."""
    analysis = request.analysis
    taken = total([o.input_rate.value for o in analysis.operators if o.operator in present.topology.sources])
    if taken is None or taken <= 0:
        return memory
    taken = min(taken, MOST_RATE)
    shares = {
        o.operator: o for o in analysis.operators if o.utilisation.value is not None and o.operator in present.current
    }
    busiest = sorted(shares, key=lambda name: -(shares[name].utilisation.value or 0.0))[:MOST_REGRESSIONS]
    place = {name: str(i) for i, name in enumerate(present.topology.names)}
    regressions: dict[str, _Regression] = {}
    told = []
    for name in busiest:
        mean = min(1.0, max(0.0, shares[name].utilisation.value or 0.0))
        if mean < LEAST_BUSY:
            continue
        skew = shares[name].skew.value
        hottest = min(1.0, mean * max(1.0, 1.0 if skew is None else skew))
        regression = memory.regressions.get(place[name], _Regression()).add(mean, taken)
        regressions[place[name]] = regression
        full = regression.at(1 - (hottest - mean))
        if full is not None and full >= LEAST_CAPACITY:
            told.append(full)
    if not told:
        return memory.model_copy(update={"regressions": regressions})
    key, newest = str(present.replicas), min(MOST_RATE, *told)
    capacities = dict(memory.capacities)
    before = capacities.pop(key, None)
    capacities[key] = round(newest if before is None else (before + newest) / 2, 3)
    capacities = dict(list(capacities.items())[-MOST_CAPACITIES:])
    return memory.model_copy(update={"regressions": regressions, "capacities": capacities})


# -- what is forecast ---------------------------------------------------------------------------------------------


def _is_ar(memory: _Memory, parameters: DaedalusParameters) -> bool:
    return memory.wape is not None and memory.wape < parameters.highest_wape


def _forecast(memory: _Memory, parameters: DaedalusParameters, load: float) -> list[float]:
    """The load of each of the next minutes."""
    history = [*memory.minutes, memory.added / memory.count] if memory.count else [*memory.minutes, load]
    if _is_ar(memory, parameters):
        forecast = autoregressive(history, parameters.order, parameters.forecast_minutes)
        if forecast is not None:
            return forecast
    return linear(history[-parameters.regression_minutes :], parameters.forecast_minutes)


def autoregressive(history: list[float], order: int, minutes: int) -> list[float] | None:
    """ARIMA(order, 1, 0) by least squares: the next differences from the last `order`. None while there is too little to learn from.

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
    last, value, highest = list(differences[-order:]), history[-1], 2 * max(history)
    told = []
    for _ in range(minutes):
        # No difference is larger than the whole load: what an unstable fit says of later minutes cannot overflow.
        step = float(np.clip(weights[0] + weights[1:] @ np.array(last), -highest / scale, highest / scale))
        last = [*last[1:], step]
        value = min(highest, max(0.0, value + step * scale))
        told.append(value)
    return told


def linear(history: list[float], minutes: int) -> list[float]:
    """A straight line through the last minutes, continued; never below 0. One minute is a level."""
    n = len(history)
    if n < 2:
        return [history[-1]] * minutes
    middle, mean = (n - 1) / 2, sum(history) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(history)) / spread
    return [max(0.0, mean + slope * (n + i - middle)) for i in range(minutes)]
