package dev.weir.sample;

import java.io.Serializable;
import java.net.URI;
import java.util.function.BiConsumer;

/** What makes an operator's records cost their time: planned in {@code main}, opened and used in one subtask. */
final class Meter implements Serializable {

  private static final long serialVersionUID = 1L;

  private final String operator;
  private final Cost initial;
  private final URI controlUrl;

  private transient ServiceTime serviceTime;
  private transient Control control;
  private transient CostChanges applied;
  private transient int parallelism;
  private transient long serviceNanos;

  /**
   * @param controlUrl null: the initial cost stays
   */
  Meter(String operator, Cost initial, URI controlUrl) {
    this.operator = operator;
    this.initial = initial;
    this.controlUrl = controlUrl;
  }

  void open(int parallelism, BiConsumer<String, Runnable> releaseHooks) {
    this.parallelism = parallelism;
    serviceTime = new ServiceTime();
    serviceNanos = initial.nanosAt(parallelism);
    applied = CostChanges.NONE;
    control = controlUrl == null ? null : Control.at(controlUrl, releaseHooks);
  }

  /** To be called when a record is taken up. */
  long start() {
    return serviceTime.now();
  }

  /** To be called when it is done, with what {@link #start()} gave: returns when its service time is over. */
  void finish(long started) {
    if (control != null && control.latest() != applied) {
      applied = control.latest();
      serviceNanos = applied.appliedTo(operator, initial).nanosAt(parallelism);
    }
    serviceTime.pay(serviceNanos, started);
  }
}
