package dev.weir.sample;

import java.util.concurrent.locks.LockSupport;
import java.util.function.LongConsumer;
import java.util.function.LongSupplier;

/**
 * Makes a record take a given time without using the processor for it, so that many subtasks on few cores each have the
 * capacity they were given.
 *
 * <p>Each record adds its service time to a debt and takes off what the operator, and Flink between two records, needed
 * for it. Once the debt passes a millisecond the thread sleeps it off; sleeping for less would cost more than it models.
 * What a sleep took too long is credit for the next records, so that the average is exact; the credit is bounded, so that
 * a long pause of the machine is not followed by a long burst. Used by one task thread.
 */
public final class ServiceTime {

  static final long SLEEP_FROM_NANOS = 1_000_000;
  static final long MOST_CREDIT_NANOS = 50_000_000;

  /**
   * An operator's own work counts up to here; more is waiting for room downstream, which is not service. A longer time
   * between two records is waiting for input.
   */
  static final long MOST_OWN_WORK_NANOS = 100_000;

  private final LongSupplier nanoClock;
  private final LongConsumer sleep;
  private long debtNanos;
  private long doneNanos;

  public ServiceTime() {
    this(System::nanoTime, LockSupport::parkNanos);
  }

  public ServiceTime(LongSupplier nanoClock, LongConsumer sleep) {
    this.nanoClock = nanoClock;
    this.sleep = sleep;
  }

  public long now() {
    return nanoClock.getAsLong();
  }

  /**
   * Pay for one record.
   *
   * @param serviceNanos what it is to take
   * @param startedNanos {@link #now()} when the operator took it up
   */
  public void pay(long serviceNanos, long startedNanos) {
    long before = nanoClock.getAsLong();
    long between = startedNanos - doneNanos;
    long ownWork = Math.min(Math.max(0, before - startedNanos), MOST_OWN_WORK_NANOS);
    if (between >= 0 && between < MOST_OWN_WORK_NANOS) {
      ownWork += between;
    }
    debtNanos += serviceNanos - Math.min(ownWork, serviceNanos);
    doneNanos = before;
    if (debtNanos >= SLEEP_FROM_NANOS) {
      // Returns at once when the task is being cancelled; it may also return early, and the rest stays owed.
      sleep.accept(debtNanos);
      doneNanos = nanoClock.getAsLong();
      debtNanos = Math.max(debtNanos - (doneNanos - before), -MOST_CREDIT_NANOS);
    }
  }
}
