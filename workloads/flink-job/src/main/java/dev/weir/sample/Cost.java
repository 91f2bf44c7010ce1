package dev.weir.sample;

import java.io.Serializable;

/**
 * What a record costs at one operator.
 *
 * @param serviceTimeMicros time one subtask takes for a record when it is alone, microseconds
 * @param contention s in capacity(p) = c·p / (1 + s·(p − 1)): what the subtasks of an operator take from each other
 * @param limitPerSecond records/s all subtasks together may pass on; null: no such limit. Every subtask gets limit/p.
 */
record Cost(double serviceTimeMicros, double contention, Double limitPerSecond) implements Serializable {

  private static final long serialVersionUID = 1L;

  static final double LONGEST_MICROS = 10_000_000;

  Cost {
    require(serviceTimeMicros >= 0 && serviceTimeMicros <= LONGEST_MICROS, "service time", serviceTimeMicros);
    require(contention >= 0 && contention <= 10, "contention", contention);
    require(limitPerSecond == null || (limitPerSecond >= 0.1 && limitPerSecond <= 1e9), "limit", limitPerSecond);
  }

  private static void require(boolean holds, String what, Object value) {
    if (!holds) {
      throw new IllegalArgumentException(what + " out of range: " + value);
    }
  }

  /** Nanoseconds a record takes at one of {@code parallelism} subtasks. */
  long nanosAt(int parallelism) {
    double micros = serviceTimeMicros * (1 + contention * (parallelism - 1));
    if (limitPerSecond != null) {
      micros = Math.max(micros, 1e6 * parallelism / limitPerSecond);
    }
    return Math.round(micros * 1000);
  }
}
