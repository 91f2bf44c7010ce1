"""Forecast of a series of minutes. Pure numbers."""

import numpy as np


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
