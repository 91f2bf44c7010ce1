package dev.weir.sample;

import java.net.URI;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.flink.util.ParameterTool;

/** The job's arguments, read and checked; what is wrong is said with the argument's name. */
final class Options {

  static final String SOURCE = "orders";
  static final String PARSE = "parse";
  static final String ENRICH = "enrich";
  static final String AGGREGATE = "aggregate";
  static final String SINK = "sink";

  /** Operators whose records can be made to cost time. */
  static final List<String> COSTED = List.of(PARSE, ENRICH, AGGREGATE, SINK);

  private static final List<String> OPERATORS = List.of(SOURCE, PARSE, ENRICH, AGGREGATE, SINK);
  private static final Map<String, Double> DEFAULT_MICROS =
      Map.of(PARSE, 50.0, ENRICH, 1000.0, AGGREGATE, 100.0, SINK, 100.0);
  private static final Set<String> KNOWN =
      Set.of(
          "bootstrap-servers",
          "input-topic",
          "output-topic",
          "group-id",
          "job-name",
          "bounded",
          "partition-discovery-ms",
          "checkpoint-interval-ms",
          "window-ms",
          "max-parallelism",
          "parallelism",
          "service-time-us",
          "contention",
          "sink-limit-per-second",
          "state-bytes",
          "control-url");

  /** What ParameterTool gives for an argument that is followed by nothing. */
  private static final String NO_VALUE = "__NO_VALUE_KEY";

  final String bootstrapServers;
  final String inputTopic;
  final String outputTopic;
  final String groupId;
  final String jobName;
  final boolean bounded;
  final long partitionDiscoveryMillis;
  final long checkpointIntervalMillis;
  final long windowMillis;
  final int maxParallelism;
  final int stateBytes;

  /** Null: costs stay as they are at the start. */
  final URI controlUrl;

  private final Map<String, Double> parallelism;
  private final Map<String, Double> serviceTimeMicros;
  private final Map<String, Double> contention;
  private final Double sinkLimitPerSecond;

  private final ParameterTool given;

  private Options(ParameterTool given) {
    this.given = given;
    Set<String> unknown = new TreeSet<>(given.toMap().keySet());
    unknown.removeAll(KNOWN);
    if (!unknown.isEmpty()) {
      throw wrong(unknown.iterator().next(), "no such argument, there are " + new TreeSet<>(KNOWN));
    }
    bootstrapServers = text("bootstrap-servers", null);
    inputTopic = text("input-topic", "orders");
    outputTopic = text("output-topic", "order-totals");
    groupId = text("group-id", "orders");
    jobName = text("job-name", "orders");
    bounded = flag("bounded");
    partitionDiscoveryMillis = whole("partition-discovery-ms", 10_000, 100, 3_600_000);
    checkpointIntervalMillis = whole("checkpoint-interval-ms", 10_000, 10, 86_400_000);
    windowMillis = whole("window-ms", 1000, 10, 3_600_000);
    maxParallelism = (int) whole("max-parallelism", 120, 1, 32_768);
    stateBytes = (int) whole("state-bytes", 256, 0, 16_000_000);
    controlUrl = url("control-url");
    parallelism = byOperator("parallelism", OPERATORS, 1, maxParallelism);
    serviceTimeMicros = byOperator("service-time-us", COSTED, 0, Cost.LONGEST_MICROS);
    contention = byOperator("contention", COSTED, 0, 10);
    sinkLimitPerSecond =
        given.has("sink-limit-per-second")
            ? number("sink-limit-per-second", text("sink-limit-per-second", null), 0.1, 1e9)
            : null;
    parallelism.forEach(
        (operator, value) -> {
          if (value != Math.rint(value)) {
            throw wrong("parallelism", operator + ": not a whole number: " + value);
          }
        });
  }

  static Options of(String... arguments) {
    return new Options(ParameterTool.fromArgs(arguments));
  }

  /** Parallelism to start an operator with; null: the one the job is submitted with. */
  Integer parallelismOf(String operator) {
    Double value = parallelism.get(operator);
    return value == null ? null : value.intValue();
  }

  Meter meterOf(String operator) {
    return new Meter(operator, costOf(operator), controlUrl);
  }

  Cost costOf(String operator) {
    return new Cost(
        serviceTimeMicros.getOrDefault(operator, DEFAULT_MICROS.get(operator)),
        contention.getOrDefault(operator, 0.0),
        operator.equals(SINK) ? sinkLimitPerSecond : null);
  }

  private String text(String name, String otherwise) {
    String value = given.get(name, otherwise);
    if (value == null || value.isBlank() || value.equals(NO_VALUE)) {
      throw wrong(name, "has no value");
    }
    return value;
  }

  private boolean flag(String name) {
    String value = text(name, "false");
    if (!value.equals("true") && !value.equals("false")) {
      throw wrong(name, "neither true nor false: " + value);
    }
    return value.equals("true");
  }

  private long whole(String name, long otherwise, long least, long most) {
    double value = number(name, text(name, Long.toString(otherwise)), least, most);
    if (value != Math.rint(value)) {
      throw wrong(name, "not a whole number: " + value);
    }
    return (long) value;
  }

  private double number(String name, String value, double least, double most) {
    double number;
    try {
      number = Double.parseDouble(value);
    } catch (NumberFormatException error) {
      throw wrong(name, "not a number: " + value);
    }
    if (!(number >= least && number <= most)) {
      throw wrong(name, "not from " + least + " to " + most + ": " + value);
    }
    return number;
  }

  private URI url(String name) {
    if (!given.has(name)) {
      return null;
    }
    URI url;
    try {
      url = URI.create(text(name, null));
    } catch (IllegalArgumentException error) {
      throw wrong(name, "not a URL: " + error.getMessage());
    }
    if (!"http".equals(url.getScheme()) || url.getHost() == null) {
      throw wrong(name, "not an http URL: " + url);
    }
    return url;
  }

  /** Reads {@code parse=50,enrich=500}. */
  private Map<String, Double> byOperator(String name, List<String> operators, double least, double most) {
    Map<String, Double> values = new HashMap<>();
    if (!given.has(name)) {
      return values;
    }
    for (String part : text(name, null).split(",")) {
      String[] pair = part.split("=", 2);
      if (pair.length != 2) {
        throw wrong(name, "not operator=value: " + part);
      }
      if (!operators.contains(pair[0])) {
        throw wrong(name, "no such operator: " + pair[0] + ", there are " + operators);
      }
      values.put(pair[0], number(name, pair[1], least, most));
    }
    return values;
  }

  private static IllegalArgumentException wrong(String name, String what) {
    return new IllegalArgumentException("--" + name + ": " + what);
  }

  @Override
  public String toString() {
    return Arrays.toString(given.toMap().entrySet().stream().sorted(Map.Entry.comparingByKey()).toArray());
  }
}
