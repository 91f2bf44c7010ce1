"""The recorded run once more, on the simulator, configured by what the job and its cluster are started with."""

from bench.fidelity.recording import Look, Recording
from cli.trial.options import MAX_PARALLELISM, PARTITIONS
from cli.trial.stack import SLOTS
from simulator import Application, Observer, Simulation, chain
from simulator.spec import parse
from workloads import sample_job
from workloads.loadgen.records import DEFAULT_KEYS

STEP_SECONDS = 0.1


def sample_application(restart_seconds: float) -> Application:
    """The simulator's chain with the sample job's costs on the trial's cluster. One subtask each."""
    document = chain(1).model_dump()
    for operator in document["operators"]:
        name = operator["name"].split(":")[0]
        operator["max_parallelism"], operator["keys"] = MAX_PARALLELISM, DEFAULT_KEYS
        operator["contention"] = sample_job.CONTENTION.get(name, 0.0)
        if name in sample_job.SERVICE_MICROS:
            operator["service_seconds"] = sample_job.SERVICE_MICROS[name] / 1e6
        if name == sample_job.SLOWEST:
            operator["service_seconds"] = 1 / sample_job.SUBTASK_RATE
        if operator["source"] is not None:
            operator["source"]["partitions"] = PARTITIONS
        if operator["window_seconds"] is not None:
            operator["window_seconds"], operator["window_keys"] = sample_job.WINDOW_SECONDS, DEFAULT_KEYS
    document["cluster"] = {
        "slots": SLOTS,
        "checkpoint_interval_seconds": sample_job.CHECKPOINT_INTERVAL_SECONDS,
        "restart_seconds": restart_seconds,
        # A service time is slept, and a rescale leaves the TaskManagers running: nothing there is to warm up.
        "warm_up_seconds": 0.0,
    }
    return parse(document)


def simulate(recording: Recording, application: Application) -> Recording:
    """The same load and requests; looked at and observed at the same times."""
    first = recording.observations[0]
    simulation = Simulation(application, recording.load(), step_seconds=STEP_SECONDS, calm_seconds=0)
    observer = Observer(simulation, start=first.observed_at)
    looks: list[Look] = []
    observations = []
    wanted = {request.at_seconds: request for request in recording.requests}
    scraped = set(recording.times())
    for at in sorted({*wanted, *scraped, *(look.at_seconds for look in recording.looks)}):
        simulation.advance(at)
        if at in wanted:
            refused = simulation.request(wanted[at].parallelism) or simulation.trigger_checkpoint()
            if refused is not None:
                raise ValueError(f"the simulated cluster refuses the rescale at {at:g} s: {refused}")
        if at in scraped:
            observations += observer.scrape(first.policy)
        # A result is of a window that has ended, so its oldest order has waited for that.
        latency = simulation.latency_seconds + sample_job.WINDOW_SECONDS
        looks.append(Look(at_seconds=at, running=simulation.state == "RUNNING", latency_seconds=latency))
    return Recording(observations=observations, requests=recording.requests, looks=looks)
