package dev.weir.sample.streams;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import dev.weir.sample.HttpDocument;
import java.io.IOException;
import java.net.URI;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Service time of an order, polled once a second from the load generator: {@code operators.aggregate.service_time_us} of
 * {@code GET /workload}. While there is no readable response, the last service time stays.
 */
final class Costs implements Runnable {

  static final double MAX_MICROS = 10_000_000;

  private static final Logger LOG = LoggerFactory.getLogger(Costs.class);
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int PAUSE_MILLIS = 1000;

  private final double initialMicros;

  /** Null: the service time does not change. */
  private final URI url;

  private volatile long serviceNanos;
  private String problem;

  Costs(double initialMicros, URI url) {
    this.initialMicros = initialMicros;
    this.url = url;
    serviceNanos = nanos(initialMicros);
  }

  long serviceNanos() {
    return serviceNanos;
  }

  /** Poll once before the first order, then in the background until the process ends. */
  void start() {
    if (url != null) {
      poll();
      Thread thread = new Thread(this, "costs");
      thread.setDaemon(true);
      thread.start();
    }
  }

  @Override
  public void run() {
    try {
      while (true) {
        Thread.sleep(PAUSE_MILLIS);
        poll();
      }
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
  }

  private void poll() {
    try {
      long nanos = nanos(read(HttpDocument.get(url)));
      if (nanos != serviceNanos) {
        LOG.info("an order takes {} µs", nanos / 1000);
        serviceNanos = nanos;
      }
      problem = null;
    } catch (IOException | RuntimeException error) {
      // Once for each new problem, not once a second.
      if (!error.toString().equals(problem)) {
        problem = error.toString();
        LOG.warn("keeping the last service time: {}: {}", url, problem);
      }
    }
  }

  /**
   * Return the service time of a response in microseconds, the initial one if it has none.
   *
   * @throws IOException naming the field that cannot be used
   */
  double read(byte[] document) throws IOException {
    JsonNode root = JSON.readTree(document);
    if (root == null || !root.isObject()) {
      throw new IOException("not a JSON object");
    }
    JsonNode micros = root.path("operators").path("aggregate").path("service_time_us");
    if (micros.isMissingNode() || micros.isNull()) {
      return initialMicros;
    }
    if (!micros.isNumber() || !(micros.doubleValue() >= 0 && micros.doubleValue() <= MAX_MICROS)) {
      throw new IOException("operators.aggregate.service_time_us: not a number from 0 to " + MAX_MICROS);
    }
    return micros.doubleValue();
  }

  private static long nanos(double micros) {
    return Math.round(micros * 1000);
  }
}
