"""Every service's dead letters are counted where they all come together."""

from uuid import UUID

from prometheus_client import REGISTRY

from tests.unit.knowledge.builders import NOON
from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS
from weir_knowledge.gauges import count_dead_letter
from weir_runtime.bus import Record
from weir_runtime.messages import encode

LETTER = DeadLetter(
    id=UUID(int=1),
    at=NOON,
    service="analyzer",
    topic="weir.observations.v1alpha1",
    partition=0,
    offset=7,
    reason="no",
    code="invalid",
)


def counted(service: str, topic: str, code: str = "unknown") -> float:
    name = "weir_knowledge_dead_letters_total"
    return REGISTRY.get_sample_value(name, {"service": service, "topic": topic, "code": code}) or 0.0


def test_a_dead_letter_counts_for_the_service_that_sent_it() -> None:
    """The analyzer's are written in Spark, where no counter can be read."""
    body, headers = encode(LETTER, type=DEAD_LETTERS.type, source="analyzer", id=LETTER.id, time=NOON)
    before = counted("analyzer", LETTER.topic, "invalid")
    count_dead_letter(Record(DEAD_LETTERS.name, 0, 0, "shop/orders", body, headers))
    count_dead_letter(Record(DEAD_LETTERS.name, 0, 1, "shop/orders", None))
    assert counted("analyzer", LETTER.topic, "invalid") == before + 1


def test_an_invalid_dead_letter_counts_for_no_service() -> None:
    """A dead letter for it would be invalid, too, without end."""
    before = counted("unknown", DEAD_LETTERS.name)
    count_dead_letter(Record(DEAD_LETTERS.name, 0, 0, "x", b"{"))
    assert counted("unknown", DEAD_LETTERS.name) == before + 1
