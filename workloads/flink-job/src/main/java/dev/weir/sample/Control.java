package dev.weir.sample;

import java.io.IOException;
import java.net.URI;
import java.util.function.BiConsumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks the control endpoint once a second what records are to cost, on one daemon thread for all subtasks of the job in
 * this JVM. While the endpoint cannot be reached, or answers nonsense, the last values stay.
 *
 * <p>A class loader of the job holds one of these; the thread ends when Flink releases that class loader.
 */
final class Control implements Runnable {

  private static final Logger LOG = LoggerFactory.getLogger(Control.class);
  private static final int PAUSE_MILLIS = 1000;

  private static Control shared;

  private final URI url;
  private volatile CostChanges latest = CostChanges.NONE;
  private volatile String problem;

  private Control(URI url) {
    this.url = url;
  }

  /**
   * The control of this job, asked at least once: a restarted subtask does not begin with its start values.
   *
   * @param releaseHooks where to register what ends the thread: (name, hook)
   */
  static synchronized Control at(URI url, BiConsumer<String, Runnable> releaseHooks) {
    if (shared == null) {
      Control control = new Control(url);
      control.ask();
      Thread thread = new Thread(control, "weir-sample-control");
      thread.setDaemon(true);
      releaseHooks.accept("weir-sample-control", thread::interrupt);
      thread.start();
      shared = control;
    }
    return shared;
  }

  /** The newest answer. A new answer that differs is another object. */
  CostChanges latest() {
    return latest;
  }

  @Override
  public void run() {
    try {
      while (true) {
        Thread.sleep(PAUSE_MILLIS);
        ask();
      }
    } catch (InterruptedException released) {
      Thread.currentThread().interrupt();
    }
  }

  private void ask() {
    try {
      CostChanges answer = CostChanges.read(HttpDocument.get(url));
      if (!answer.equals(latest)) {
        LOG.info("{} says: {}", url, answer);
        latest = answer;
      }
      problem = null;
    } catch (IOException | RuntimeException error) {
      // Once for each new problem, not once a second.
      if (!error.toString().equals(problem)) {
        problem = error.toString();
        LOG.warn("keeping the last costs: {}: {}", url, problem);
      }
    }
  }
}
