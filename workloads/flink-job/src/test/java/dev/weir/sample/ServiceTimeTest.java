package dev.weir.sample;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

/** On a clock of the test's own: a thread's time is what its records and sleeps take. */
class ServiceTimeTest {

  private long clockNanos = 1_000_000_000_000L;
  private long sleeps;

  /** A sleep that takes so much longer than asked. */
  private ServiceTime oversleepingBy(long nanos) {
    return new ServiceTime(
        () -> clockNanos,
        asked -> {
          sleeps++;
          clockNanos += asked + nanos;
        });
  }

  private long timeFor(ServiceTime time, int records, long serviceNanos, long ownWorkNanos) {
    long began = clockNanos;
    for (int i = 0; i < records; i++) {
      long started = time.now();
      clockNanos += ownWorkNanos;
      time.pay(serviceNanos, started);
    }
    return clockNanos - began;
  }

  /** 1,000 records of a millisecond take a second, though every sleep takes 80 µs too long. */
  @Test
  void oversleepingIsMadeUpFor() {
    assertEquals(1e9, timeFor(oversleepingBy(80_000), 1000, 1_000_000, 0), 2e6);
  }

  /** What the operator itself needs is part of the service time, not on top of it. */
  @Test
  void ownWorkCounts() {
    assertEquals(1e9, timeFor(oversleepingBy(50_000), 1000, 1_000_000, 40_000), 2e6);
  }

  /** 20 µs a record: fifty records' debt is slept off at once. */
  @Test
  void shortServiceTimesAreSleptOffTogether() {
    assertEquals(2e8, timeFor(oversleepingBy(60_000), 10_000, 20_000, 1_000), 2e6);
    assertTrue(sleeps <= 200, "slept " + sleeps + " times");
  }

  /** A service time of nothing never sleeps. */
  @Test
  void nothingCostsNothing() {
    assertEquals(0, timeFor(oversleepingBy(0), 1000, 0, 0));
    assertEquals(0, sleeps);
  }

  /** The machine stood still for a minute during a sleep: at most 50 ms of records follow for free. */
  @Test
  void aLongPauseIsNotFollowedByALongBurst() {
    ServiceTime time = oversleepingBy(60_000_000_000L);
    timeFor(time, 1, 1_000_000, 0);
    long freeUntil = sleeps;
    int free = 0;
    while (sleeps == freeUntil) {
      timeFor(time, 1, 1_000_000, 0);
      free++;
    }
    assertTrue(free >= 50 && free <= 52, free + " records were free");
  }

  /** Blocked on a full output for ten milliseconds: that is no work, so most of the service time is still due. */
  @Test
  void waitingForRoomDownstreamIsNotService() {
    ServiceTime time = oversleepingBy(0);
    assertEquals(10_000_000 + 1_900_000, timeFor(time, 1, 2_000_000, 10_000_000));
  }

  /** What Flink does between two records counts: with 15 µs of it, 10,000 records of 100 µs take a second. */
  @Test
  void workBetweenRecordsCounts() {
    assertEquals(1e9, withPausesOf(15_000), 2e6);
  }

  /** Waiting for a record does not: with 900 µs of it, the same records take ten seconds, every one its full time. */
  @Test
  void waitingForInputIsNotService() {
    assertEquals(1e10, withPausesOf(900_000), 2e7);
  }

  private long withPausesOf(long nanos) {
    ServiceTime time = oversleepingBy(50_000);
    long began = clockNanos;
    for (int i = 0; i < 10_000; i++) {
      clockNanos += nanos;
      timeFor(time, 1, 100_000, 0);
    }
    return clockNanos - began;
  }

  /** A sleep that returns early, as parkNanos may, leaves the rest owed. */
  @Test
  void aSleepThatIsCutShortIsOwed() {
    ServiceTime time =
        new ServiceTime(
            () -> clockNanos,
            asked -> {
              sleeps++;
              clockNanos += asked / 2;
            });
    assertEquals(1e9, timeFor(time, 1000, 1_000_000, 0), 3e6);
  }
}
