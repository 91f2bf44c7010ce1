package dev.weir.sample;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Costs to use instead of the ones the job was started with; what is not named stays as it was started.
 *
 * @param operators by operator name
 * @param sinkLimitPerSecond null: not named
 */
record CostChanges(Map<String, Change> operators, Double sinkLimitPerSecond) {

  /** Null: not named. */
  record Change(Double serviceTimeMicros, Double contention) {}

  static final CostChanges NONE = new CostChanges(Map.of(), null);

  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Set<String> FIELDS = Set.of("operators", "sink_limit_per_second");

  /**
   * Reads {@code {"operators":{"enrich":{"service_time_us":200,"contention":0.05}},"sink_limit_per_second":900}}.
   *
   * @throws IOException naming the field if it is no such document
   */
  static CostChanges read(byte[] document) throws IOException {
    JsonNode root = JSON.readTree(document);
    if (root == null || !root.isObject()) {
      throw new IOException("not a JSON object");
    }
    onlyKnown(root, FIELDS, "");
    Map<String, Change> operators = new HashMap<>();
    JsonNode named = root.path("operators");
    if (!named.isMissingNode() && !named.isNull() && !named.isObject()) {
      throw new IOException("operators: not an object");
    }
    for (Map.Entry<String, JsonNode> entry : named.properties()) {
      String place = "operators." + entry.getKey();
      if (!Options.COSTED.contains(entry.getKey())) {
        throw new IOException(place + ": no such operator, there are " + Options.COSTED);
      }
      if (!entry.getValue().isObject()) {
        throw new IOException(place + ": not an object");
      }
      onlyKnown(entry.getValue(), Set.of("service_time_us", "contention"), place + ".");
      operators.put(
          entry.getKey(),
          new Change(
              number(entry.getValue(), "service_time_us", 0, Cost.LONGEST_MICROS, place + "."),
              number(entry.getValue(), "contention", 0, 10, place + ".")));
    }
    return new CostChanges(Map.copyOf(operators), number(root, "sink_limit_per_second", 0.1, 1e9, ""));
  }

  /** The cost of an operator that was started with {@code initial}. */
  Cost appliedTo(String operator, Cost initial) {
    Change change = operators.getOrDefault(operator, new Change(null, null));
    boolean limited = operator.equals(Options.SINK) && sinkLimitPerSecond != null;
    return new Cost(
        change.serviceTimeMicros() == null ? initial.serviceTimeMicros() : change.serviceTimeMicros(),
        change.contention() == null ? initial.contention() : change.contention(),
        limited ? sinkLimitPerSecond : initial.limitPerSecond());
  }

  private static void onlyKnown(JsonNode node, Set<String> fields, String place) throws IOException {
    for (Map.Entry<String, JsonNode> entry : node.properties()) {
      if (!fields.contains(entry.getKey())) {
        throw new IOException(place + entry.getKey() + ": no such field");
      }
    }
  }

  private static Double number(JsonNode node, String field, double least, double most, String place)
      throws IOException {
    JsonNode value = node.path(field);
    if (value.isMissingNode() || value.isNull()) {
      return null;
    }
    if (!value.isNumber() || !(value.doubleValue() >= least && value.doubleValue() <= most)) {
      throw new IOException(place + field + ": not a number from " + least + " to " + most + ": " + value);
    }
    return value.doubleValue();
  }
}
