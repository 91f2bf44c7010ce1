package dev.weir.sample.streams;

import java.net.URI;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * The application's settings: {@code --commit-interval-ms 1000}, or {@code STREAMS_COMMIT_INTERVAL_MS=1000} in the
 * environment. An argument wins. An error names the argument.
 */
final class Options {

  private static final Set<String> NAMES =
      Set.of(
          "application-id",
          "bootstrap-servers",
          "client-id",
          "orders-topic",
          "payments-topic",
          "output-topic",
          "threads",
          "state-dir",
          "commit-interval-ms",
          "session-timeout-ms",
          "standby-replicas",
          "service-time-us",
          "state-bytes",
          "control-url",
          "port",
          "properties");

  final String applicationId;
  final String bootstrapServers;

  /** Null: Kafka Streams makes one up. */
  final String clientId;

  final String ordersTopic;
  final String paymentsTopic;
  final String outputTopic;
  final int threads;

  /** Null: Kafka Streams' default. */
  final Path stateFolder;

  final long commitIntervalMillis;
  final int sessionTimeoutMillis;
  final int standbyReplicas;
  final double serviceTimeMicros;
  final int stateBytes;

  /** Null: the service time stays as it is at the start. */
  final URI controlUrl;

  /** Port of the readiness endpoint; null: none. */
  final Integer port;

  /** File with further settings of Kafka Streams, such as those of a listener with TLS and SASL; null: none. */
  final Path properties;

  private final Map<String, String> given;

  Options(String[] arguments, Map<String, String> environment) {
    given = given(arguments, environment);
    applicationId = text("application-id", "orders");
    bootstrapServers = text("bootstrap-servers", null);
    clientId = given.containsKey("client-id") ? text("client-id", null) : null;
    ordersTopic = text("orders-topic", "orders");
    paymentsTopic = text("payments-topic", "payments");
    outputTopic = text("output-topic", "order-totals");
    threads = (int) whole("threads", 1, 1, 64);
    stateFolder = given.containsKey("state-dir") ? Path.of(text("state-dir", null)) : null;
    commitIntervalMillis = whole("commit-interval-ms", 1000, 10, 3_600_000);
    sessionTimeoutMillis = (int) whole("session-timeout-ms", 45_000, 6000, 1_800_000);
    standbyReplicas = (int) whole("standby-replicas", 0, 0, 10);
    serviceTimeMicros = number("service-time-us", 1000, 0, Costs.MAX_MICROS);
    stateBytes = (int) whole("state-bytes", 256, 0, 100_000);
    controlUrl = url("control-url");
    port = given.containsKey("port") ? Integer.valueOf((int) whole("port", 0, 1, 65_535)) : null;
    properties = given.containsKey("properties") ? Path.of(text("properties", null)) : null;
  }

  private static Map<String, String> given(String[] arguments, Map<String, String> environment) {
    Map<String, String> given = new HashMap<>();
    for (String name : NAMES) {
      String value = environment.get("STREAMS_" + name.toUpperCase(Locale.ROOT).replace('-', '_'));
      if (value != null && !value.isBlank()) {
        given.put(name, value);
      }
    }
    for (int i = 0; i < arguments.length; i += 2) {
      String name = arguments[i].startsWith("--") ? arguments[i].substring(2) : arguments[i];
      if (!arguments[i].startsWith("--") || !NAMES.contains(name)) {
        throw new IllegalArgumentException(arguments[i] + ": unknown; arguments are " + new TreeSet<>(NAMES));
      }
      if (i + 1 == arguments.length) {
        throw wrong(name, "has no value");
      }
      given.put(name, arguments[i + 1]);
    }
    return given;
  }

  private String text(String name, String otherwise) {
    String value = given.getOrDefault(name, otherwise);
    if (value == null || value.isBlank()) {
      throw wrong(name, "has no value");
    }
    return value;
  }

  private long whole(String name, long otherwise, long min, long max) {
    double value = number(name, otherwise, min, max);
    if (value != Math.rint(value)) {
      throw wrong(name, "must be a whole number, is " + value);
    }
    return (long) value;
  }

  private double number(String name, double otherwise, double min, double max) {
    if (!given.containsKey(name)) {
      return otherwise;
    }
    double value;
    try {
      value = Double.parseDouble(given.get(name));
    } catch (NumberFormatException error) {
      throw wrong(name, "must be a number, is " + given.get(name));
    }
    if (!(value >= min && value <= max)) {
      throw wrong(name, String.format(Locale.ROOT, "must lie between %.0f and %.0f, is %s", min, max, given.get(name)));
    }
    return value;
  }

  private URI url(String name) {
    if (!given.containsKey(name)) {
      return null;
    }
    URI url;
    try {
      url = URI.create(text(name, null));
    } catch (IllegalArgumentException error) {
      throw wrong(name, "is no URL: " + error.getMessage());
    }
    if (!"http".equals(url.getScheme()) || url.getHost() == null) {
      throw wrong(name, "must be an http URL, is " + url);
    }
    return url;
  }

  static IllegalArgumentException wrong(String name, String reason) {
    return new IllegalArgumentException("--" + name + ": " + reason);
  }
}
