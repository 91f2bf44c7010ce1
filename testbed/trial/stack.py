"""A trial's stack around Flink: the loop, a cluster and the sample job."""

from pathlib import Path

from testbed.flink import FlinkApi, FlinkCluster, FlinkError
from testbed.jars import sample_job_jar
from testbed.process import Launcher, ManagedProcess
from workloads import sample_job

from .loop_stack import LOOP_PARTITIONS, SERVICES, LoopStack, Report
from .options import APPLICATION, GROUP_ID, INPUT_TOPIC, MAX_PARALLELISM, OUTPUT_TOPIC, TrialOptions, trial_policy

__all__ = ["LOOP_PARTITIONS", "SERVICES", "TrialStack"]

SLOTS = 16


class TrialStack(LoopStack):
    """One trial of a Flink job, on its own cluster or an external one."""

    application_name = "the sample job"

    def __init__(self, options: TrialOptions, folder: Path, *, task_managers: int = 1) -> None:
        super().__init__(options, folder)
        own = not options.external_flink
        self.cluster = FlinkCluster(folder / "flink", slots=SLOTS, task_managers=task_managers) if own else None
        self.flink: FlinkApi = self.cluster or FlinkApi(str(options.external_flink))
        self.job_id: str | None = None
        self.policy = trial_policy(options, self.flink.rest_url, self.kafka.bootstrap_servers)

    def _application_parts(self) -> dict[str, Launcher]:
        return {} if self.cluster is None else {"Flink": self.cluster}

    def _application_processes(self) -> list[ManagedProcess]:
        return [] if self.cluster is None else self.cluster.processes

    def _run_application(self) -> None:
        self.submit_job()

    def submit_job(self, savepoint: str | None = None) -> None:
        """Run the sample job, from where it was if a `savepoint` or retained checkpoint is named."""
        # Set before it runs, so that an interrupted start can cancel it.
        self.job_id = self.start_job(APPLICATION, GROUP_ID, OUTPUT_TOPIC, savepoint=savepoint)
        self.flink.wait_running(self.job_id)

    def start_job(self, name: str, group_id: str, output_topic: str, *, savepoint: str | None = None) -> str:
        """Submit a sample job on the trial's input and at its costs; returns its id at once."""
        arguments = [
            *("--bootstrap-servers", self.kafka.bootstrap_servers),
            *("--input-topic", INPUT_TOPIC),
            *("--output-topic", output_topic),
            *("--group-id", group_id),
            *("--job-name", name),
            *("--max-parallelism", str(MAX_PARALLELISM)),
            *sample_job.arguments(),
            *("--control-url", f"{self.load_url}/workload"),
        ]
        return self.flink.submit(sample_job_jar(), arguments, parallelism=1, savepoint=savepoint)

    def stop(self, report: Report | None = None) -> None:
        """End everything, and the job on an external cluster."""
        if self.options.external_flink and self.job_id:
            self._cancel(self.job_id, report)
        super().stop(report)

    def _cancel(self, job_id: str, report: Report | None) -> None:
        """Cancel the job on an external cluster; if it is unreachable, report that and go on stopping the rest."""
        try:
            self.flink.cancel(job_id)
        except FlinkError as error:
            if report is not None:
                report(f"job {job_id} could not be cancelled and may still run on {self.flink.rest_url}: {error}")
