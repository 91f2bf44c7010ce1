"""Suite of all daemons, for the one in memory and a real Docker."""

from typing import Protocol

import pytest

from services.executor.adapters.docker_scaling import Container, Daemon, DockerAway, DockerRefused, NameTaken


class DaemonRig(Protocol):
    """A compose service with two running containers, numbered 1 and 2, and a container of another service."""

    daemon: Daemon
    project: str
    service: str

    def takes_name(self, number: int) -> None:
        """A foreign container gets the name of the one with that number."""

    def away(self) -> Daemon:
        """A daemon that does not answer."""


def listed(rig: DaemonRig) -> list[tuple[int, str]]:
    """Number and state of each container."""
    return sorted((each.number, each.state) for each in rig.daemon.containers(rig.project, rig.service))


def one(rig: DaemonRig, number: int) -> Container:
    return next(each for each in rig.daemon.containers(rig.project, rig.service) if each.number == number)


class DaemonSuite:
    """Subclass it with a fixture `rig`."""

    def test_only_containers_of_the_service_are_listed(self, rig: DaemonRig) -> None:
        """Not those of other services and projects; an unknown service has none."""
        assert listed(rig) == [(1, "running"), (2, "running")]
        assert rig.daemon.containers(rig.project, "nobody") == []
        assert rig.daemon.containers("nobody", rig.service) == []

    def test_a_copy_is_started_stopped_and_removed(self, rig: DaemonRig) -> None:
        """Each call may be repeated."""
        copy = rig.daemon.copy(one(rig, 1), 3)
        assert listed(rig) == [(1, "running"), (2, "running"), (3, "created")]
        for _ in range(2):
            rig.daemon.start(copy)
        assert listed(rig) == [(1, "running"), (2, "running"), (3, "running")]
        for _ in range(2):
            rig.daemon.stop(copy)
        assert listed(rig) == [(1, "running"), (2, "running"), (3, "exited")]
        rig.daemon.start(copy)
        rig.daemon.stop(copy)
        for _ in range(2):
            rig.daemon.remove(copy)
        rig.daemon.stop(copy)
        assert listed(rig) == [(1, "running"), (2, "running")]

    def test_an_occupied_name_is_reported(self, rig: DaemonRig) -> None:
        """So the next number can be tried."""
        rig.takes_name(3)
        with pytest.raises(NameTaken, match="3"):
            rig.daemon.copy(one(rig, 1), 3)
        assert rig.daemon.copy(one(rig, 1), 4).number == 4

    def test_a_removed_container_cannot_be_started(self, rig: DaemonRig) -> None:
        """The call raises an error that names the container."""
        copy = rig.daemon.copy(one(rig, 1), 3)
        rig.daemon.remove(copy)
        with pytest.raises((DockerAway, DockerRefused), match=copy.name):
            rig.daemon.start(copy)

    def test_an_outage_is_not_a_refusal(self, rig: DaemonRig) -> None:
        """Every call reports it."""
        base, daemon = one(rig, 1), rig.away()
        with pytest.raises(DockerAway):
            daemon.containers(rig.project, rig.service)
        with pytest.raises(DockerAway):
            daemon.copy(base, 3)
        for call in (daemon.start, daemon.stop, daemon.remove):
            with pytest.raises(DockerAway):
                call(base)
