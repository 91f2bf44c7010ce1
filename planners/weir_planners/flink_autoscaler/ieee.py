"""Arithmetic as the original's language does it. Exact numbers need it: division by zero gives an infinity or NaN and
does not raise, NaN goes through every minimum and maximum, halves are rounded up, and a metric is rounded on its
decimal text."""

import math
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

NAN = math.nan
INFINITY = math.inf
MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1


def divide(a: float, b: float) -> float:
    """a / b of IEEE doubles."""
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a) or math.isnan(b):
        return NAN
    return math.copysign(INFINITY, a) * math.copysign(1.0, b)


def java_max(a: float, b: float) -> float:
    """The larger one; NaN if either is."""
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


def java_min(a: float, b: float) -> float:
    """The smaller one; NaN if either is."""
    return NAN if math.isnan(a) or math.isnan(b) else min(a, b)


def rounded(value: float) -> float:
    """Round to the nearest integer, halves up; NaN is 0, and values beyond 64 bits are the end of their range."""
    if math.isnan(value):
        return 0.0
    if math.isinf(value) or abs(value) >= MAX_LONG:
        return float(MAX_LONG) if value > 0 else -float(MAX_LONG) - 1.0
    below = math.floor(value)
    return float(below + 1 if value - below >= 0.5 else below)


def whole(value: float) -> int:
    """Cast to a 32-bit integer: NaN is 0, the rest is cut to the range."""
    if math.isnan(value):
        return 0
    return int(max(-MAX_INT - 1.0, min(float(MAX_INT), value)))


def metric(value: float) -> float:
    """Rounded half-up to 3 decimals, as every sample and every evaluated metric is; what would become 0 stays as it is."""
    if not math.isfinite(value) or abs(value) >= 2**53:
        return value
    short = float(Decimal(repr(value)).quantize(Decimal("0.001"), ROUND_HALF_UP))
    return value if short == 0 else short


def up_to_hundredths(value: float) -> float:
    """Rounded up to 2 decimals."""
    return float(Decimal(repr(value)).quantize(Decimal("0.01"), ROUND_CEILING))
