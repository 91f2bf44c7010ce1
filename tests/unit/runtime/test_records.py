"""Keys go where Java's default partitioner puts them."""

import pytest

from weir_runtime.records import Record, _murmur2, partition_of

# Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "expected"), VECTORS.items())
def test_the_hash_is_kafkas(data: bytes, expected: int) -> None:
    """Kafka's own test vectors, for every length of the last, partial word."""
    assert _murmur2(data) == expected % 2**32


def test_a_negative_hash_is_made_positive_as_java_does() -> None:
    """By masking the sign bit, not by the absolute value."""
    assert partition_of("foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000


def test_keys_are_hashed_as_utf8() -> None:
    """A name with an umlaut has one partition for all writers."""
    assert partition_of("läden/bücher", 97) == (_murmur2("läden/bücher".encode()) & 0x7FFFFFFF) % 97


def test_a_record_knows_its_place() -> None:
    """As errors and logs show it."""
    assert Record("t", 3, 42, None, None).place == "t/3@42"
