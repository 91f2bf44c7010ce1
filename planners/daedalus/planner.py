"""The planner `daedalus`: one parallelism for the application, by capacity, forecast and predicted recovery.

Pfister, Scheinert, Geldenhuys, Kao, "Daedalus: Self-Adaptive Horizontal Autoscaling for Resource Efficiency of
Distributed Stream Processing Systems", ICPE 2024. With W the load (records/s at all sources) and C(p) the load that a
parallelism p sustains:

    capacity now   W regressed on the busy share u of each operator, W = a + b·u by least squares over the run after its
    warm-up,
                   evaluated at u = 1 − (h − u), h the busy share of the hottest subtask (skew); the application's is
                   the smallest
    capacity at p  observed if p was run (mean of the old value and the newest), else p · C(now) / p(now)
    forecast       15 minutes of W: AR on the differences of its minutes by least squares while the WAPE of the last one
    is below 25 %,
                   else linear regression over the last minutes
    no action      within 180 s of a rescale; within 600 s if C(now) covers W and the next minute's forecast
    choice         the smallest p with C(p) > W; recovery(p) ≤ 600 s; C(p) ≥ the highest forecast up to recovery; and,
    if p is not what
                   runs, C(p) > the entire forecast, and, going down, a backlog of at most one second of C(now). If
                   none: the largest
    recovery       downtime + the time in which C(p) − forecast works off: W since the last checkpoint + the forecast
    for the
                   downtime + lag. Staying has neither downtime nor anything to do again
    downtime       of each direction (30 s up, 15 s down), moved by one second toward what was observed after each
    rescale

Otherwise than in the paper: the regression is of operators, because the contract has no readings of subtasks (theirs is
of TaskManagers, whose capacities they add), and a spread of u below 0.05 gives W/u, since a slope would be noise; the
AR model is fitted again at each evaluation, so nothing has to be retrained after 15 misses; the policy's interval is
the time between evaluations.
"""

import math
from dataclasses import dataclass

from weir_contracts import Infeasible, PlanReply, changes
from weir_planner import Request, planner

from planners.answer import Answer, total

from .learned import MAX_RATE, DaedalusParameters, Memory, forecast_of, is_ar, noticed


@dataclass(frozen=True)
class _Model:
    """The application at any parallelism: learned capacity, forecast load, and recovery."""

    request: Request
    answer: Answer
    parameters: DaedalusParameters
    now: float
    load: float
    lag_records: float
    checkpoint_seconds: float
    capacity: float
    forecast: list[float]
    memory: Memory

    def capacity_at(self, p: int) -> float:
        if p == self.request.replicas:
            return self.capacity
        return self.memory.capacities.get(str(p), p * self.capacity / self.request.replicas)

    def downtime(self, p: int) -> float:
        """0 for staying."""
        now = self.request.replicas
        if p == now:
            return 0.0
        measured, usual = (
            (self.memory.up, self.parameters.downtime_up_seconds)
            if p > now
            else (self.memory.down, self.parameters.downtime_down_seconds)
        )
        return usual if measured is None else measured

    def max_forecast(self, seconds: float) -> float:
        """Return the highest load forecast within so many seconds."""
        return max(self.forecast[: max(1, math.ceil(min(seconds, 60.0 * len(self.forecast)) / 60))])

    def recovery(self, p: int) -> float:
        """Seconds until nothing waits that did not have to; infinite if never."""
        downtime = self.downtime(p)
        again = self.load * self.checkpoint_seconds if downtime else 0.0
        waiting = self.lag_records + again + self._arriving(downtime)
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

    def _arriving(self, until: float) -> float:
        """Records forecast to arrive until a time, in s from now."""
        arriving = at = 0.0
        while at < until:
            step = min(60.0 - at % 60.0, until - at)
            arriving += self.forecast[min(len(self.forecast) - 1, int(at // 60))] * step
            at += step
        return arriving


@planner(
    name="daedalus",
    description="one parallelism for all operators: the smallest whose learned capacity carries the forecast and recovers "
    "in time (after ICPE 2024)",
    parameters=DaedalusParameters,
    reads=[],
)
def plan_by_daedalus(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(DaedalusParameters)
    memory = request.remembered(Memory)
    answer = Answer(request)
    analysis = request.analysis
    load = total([source.arrival_rate.value for source in analysis.sources])
    memory = noticed(request, memory, parameters, load)
    answer.memory = memory.model_dump(exclude_defaults=True)
    if load is None or set(request.topology.sources) != {source.operator for source in analysis.sources}:
        silent = [s for s in analysis.sources if s.arrival_rate.value is None]
        reason = silent[0].arrival_rate.basis if silent else "not every source was analysed"
        return answer.missing(f"the arrival rate of {silent[0].operator if silent else 'a source'}", reason)
    lag = total([source.lag_records.proven for source in analysis.sources])
    if lag is None:
        return answer.missing("the lag of a source", "what waits decides how long recovery takes")
    if _is_new(request, memory, parameters):
        age = request.now.timestamp() - memory.since
        sentence = f"the parallelism changed {age:.0f} s ago; nothing is decided within {parameters.quiet_seconds:.0f} s of a change"
        return answer.hold("after-rescale", sentence)
    capacity = memory.capacities.get(str(request.replicas))
    if capacity is None:
        sentence = (
            f"no capacity is known yet: that needs readings of a run older than {parameters.warm_up_seconds:.0f} s"
        )
        return answer.hold("warming-up", sentence)
    load = min(load, MAX_RATE)
    forecast = forecast_of(memory, parameters, load)
    model = _Model(
        request=request,
        answer=answer,
        parameters=parameters,
        now=request.now.timestamp(),
        load=load,
        lag_records=min(lag, MAX_RATE),
        checkpoint_seconds=_checkpoint_seconds(request, parameters),
        capacity=capacity,
        forecast=forecast,
        memory=memory,
    )
    return _chosen(model)


def _is_new(request: Request, memory: Memory, parameters: DaedalusParameters) -> bool:
    """Whether the present parallelism has only just begun."""
    return memory.since > 0 and request.now.timestamp() - memory.since < parameters.quiet_seconds


def _chosen(model: _Model) -> PlanReply:
    request, answer, parameters, now = model.request, model.answer, model.parameters, model.request.replicas
    next_minute = model.forecast[0]
    answer.evidence |= {
        "load_records_per_second": model.load,
        "capacity_records_per_second": model.capacity,
        "forecast_next_minute_records_per_second": next_minute,
        "forecast_highest_records_per_second": max(model.forecast),
        "forecast_wape": model.memory.wape,
        "forecast_is_ar": is_ar(model.memory, parameters),
        "lag_records": model.lag_records,
    }
    age = model.now - model.memory.since if model.memory.since > 0 else math.inf
    if age < parameters.settled_seconds and model.capacity > model.load and model.capacity > next_minute:
        sentence = f"{now} sustain {model.capacity:,.0f} records/s, the load is {model.load:,.0f} and {next_minute:,.0f} in a minute"
        return answer.hold("covered", sentence)
    minimum = min(limits.min for limits in request.limits.values())
    fit = next((p for p in range(minimum, request.max_replicas + 1) if _fits(model, p)), None)
    wanted = request.max_replicas if fit is None else fit
    if fit is None:
        reason = f"no parallelism up to {wanted} is forecast to keep up and recover within {parameters.recovery_seconds:.0f} s"
        answer.infeasible.append(Infeasible(limit=float(wanted), code="bounds", because=reason))
    recovery, capacity = model.recovery(wanted), model.capacity_at(wanted)
    answer.evidence |= {"chosen_capacity_records_per_second": capacity, "chosen_recovery_seconds": recovery}
    outlook = f"recovers in {recovery:.0f} s" if math.isfinite(recovery) else "never works off what waits"
    arrive = f"{model.load:,.0f} records/s arrive and {max(model.forecast):,.0f} are forecast"
    needs = f"{arrive}; {wanted} sustain {capacity:,.0f} and {outlook}"
    if wanted == now:
        code = "held" if fit is not None else "nothing-helps"
        return answer.hold(code, f"{wanted} are right: {needs}")
    vector = request.uniform(wanted)
    code = "overloaded" if wanted > now else "over-provisioned"
    return answer.scale(vector, code, f"{changes(request.current, vector)}: {needs}")


def _fits(model: _Model, p: int) -> bool:
    capacity = model.capacity_at(p)
    if capacity <= model.load:
        return False
    recovery = model.recovery(p)
    if recovery > model.parameters.recovery_seconds or capacity < model.max_forecast(recovery):
        return False
    if p == model.request.replicas:
        return True
    if capacity <= max(model.forecast):
        return False
    return p > model.request.replicas or model.lag_records <= model.capacity


def _checkpoint_seconds(request: Request, parameters: DaedalusParameters) -> float:
    points = request.deployment.checkpoints if request.deployment else None
    if points is None:
        return parameters.checkpoint_seconds
    if points.last_completed_at is not None:
        age = max(0.0, (request.now - points.last_completed_at).total_seconds())
        return min(age, 3600.0)
    return parameters.checkpoint_seconds if points.interval_seconds is None else min(points.interval_seconds, 3600.0)
