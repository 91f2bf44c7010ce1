package org.apache.flink.autoscaler;

import static org.apache.flink.autoscaler.Vectors.id;
import static org.apache.flink.autoscaler.Vectors.map;
import static org.apache.flink.autoscaler.Vectors.name;
import static org.apache.flink.autoscaler.Vectors.pick;

import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.flink.autoscaler.config.AutoScalerOptions;
import org.apache.flink.autoscaler.metrics.CollectedMetricHistory;
import org.apache.flink.autoscaler.metrics.CollectedMetrics;
import org.apache.flink.autoscaler.metrics.EvaluatedScalingMetric;
import org.apache.flink.autoscaler.metrics.MetricAggregator;
import org.apache.flink.autoscaler.metrics.ScalingMetric;
import org.apache.flink.autoscaler.topology.IOMetrics;
import org.apache.flink.autoscaler.topology.JobTopology;
import org.apache.flink.autoscaler.topology.ShipStrategy;
import org.apache.flink.autoscaler.topology.VertexInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.jobgraph.JobVertexID;

/** The parts of the original that keep nothing between calls: alignment, evaluation, the decision for one vertex. */
final class Pure {

    private static final Instant NOON = Instant.parse("2026-01-01T12:00:00Z");

    /** Shapes by the inputs of each vertex: chain, fan-out, join of two, join whose input feeds two, diamond. */
    static final List<List<List<Integer>>> SHAPES =
            List.of(
                    List.of(List.of()),
                    List.of(List.of(), List.of(0)),
                    List.of(List.of(), List.of(0), List.of(1)),
                    List.of(List.of(), List.of(0), List.of(0)),
                    List.of(List.of(), List.of(), List.of(0, 1)),
                    List.of(List.of(), List.of(), List.of(0, 1), List.of(1)),
                    List.of(List.of(), List.of(0), List.of(0), List.of(1, 2), List.of(3)));

    static List<Object> scales(Random random) {
        List<Object> vectors = new ArrayList<>();
        var conf = new Configuration();
        List<Integer> groups = List.of(1, 2, 7, 12, 13, 24, 36, 97, 100, 128, 199, 360, 720, 32768);
        for (int i = 0; i < 400; i++) {
            int most = pick(random, groups);
            int partitions = random.nextInt(3) == 0 ? pick(random, groups.subList(0, 11)) : 0;
            boolean keyed = random.nextBoolean();
            int current = 1 + random.nextInt(pick(random, List.of(3, 12, 60, 200)));
            double factor = random.nextInt(12) == 0
                    ? pick(random, List.of(0.0, 1.0, 100001.0, Double.NaN, Double.POSITIVE_INFINITY, 1e12, 0.4))
                    : Math.exp(random.nextGaussian());
            int lower = Math.min(current, pick(random, List.of(1, 1, 2, 5, 20)));
            int upper = Math.max(current, pick(random, List.of(200, 200, 12, 50, 400)));
            var events = new Vectors.Events();
            int found = JobVertexScaler.scale(
                    id(0), current, ships(keyed), partitions, most, factor, lower, upper, events, Vectors.context(conf));
            vectors.add(map(
                    "current", current, "factor", factor, "partitions", partitions, "max_parallelism", most,
                    "keyed", keyed, "lower", lower, "upper", upper, "parallelism", found,
                    "limited", events.reasons.contains("ScalingLimited")));
        }
        return vectors;
    }

    static List<ShipStrategy> ships(boolean keyed) {
        return List.of(ShipStrategy.REBALANCE, keyed ? ShipStrategy.HASH : ShipStrategy.FORWARD);
    }

    /** Options by their key, with the values that they are given here. */
    static Configuration options(Random random, Map<String, Object> told) {
        var conf = new Configuration();
        conf.set(AutoScalerOptions.TARGET_UTILIZATION, pick(random, List.of(0.7, 0.7, 0.5, 0.9, 1.0)));
        conf.set(AutoScalerOptions.TARGET_UTILIZATION_BOUNDARY, pick(random, List.of(0.3, 0.1, 0.0, 0.5)));
        conf.set(AutoScalerOptions.CATCH_UP_DURATION, Duration.ofMinutes(pick(random, List.of(30, 30, 5, 0))));
        conf.set(AutoScalerOptions.BUSY_TIME_AGGREGATOR, pick(random, List.of(MetricAggregator.MAX, MetricAggregator.AVG)));
        conf.set(AutoScalerOptions.MAX_SCALE_DOWN_FACTOR, pick(random, List.of(0.6, 0.6, 1.0, 0.2)));
        conf.set(AutoScalerOptions.MAX_SCALE_UP_FACTOR, pick(random, List.of(100000.0, 100000.0, 0.5, 1.0)));
        conf.set(AutoScalerOptions.VERTEX_MIN_PARALLELISM, pick(random, List.of(1, 1, 3)));
        conf.set(AutoScalerOptions.VERTEX_MAX_PARALLELISM, pick(random, List.of(200, 200, 12)));
        conf.set(AutoScalerOptions.SCALE_DOWN_INTERVAL, Duration.ofMinutes(pick(random, List.of(60, 10, 0))));
        conf.set(AutoScalerOptions.SCALING_EFFECTIVENESS_DETECTION_ENABLED, random.nextBoolean());
        conf.set(AutoScalerOptions.SCALING_EFFECTIVENESS_THRESHOLD, pick(random, List.of(0.1, 0.5)));
        told.put("utilization_target", conf.get(AutoScalerOptions.TARGET_UTILIZATION));
        told.put("target_utilization_boundary", conf.get(AutoScalerOptions.TARGET_UTILIZATION_BOUNDARY));
        told.put("catch_up_duration_minutes", conf.get(AutoScalerOptions.CATCH_UP_DURATION).toMinutes());
        told.put("busy_time_aggregator", conf.get(AutoScalerOptions.BUSY_TIME_AGGREGATOR).name());
        told.put("scale_down_max_factor", conf.get(AutoScalerOptions.MAX_SCALE_DOWN_FACTOR));
        told.put("scale_up_max_factor", conf.get(AutoScalerOptions.MAX_SCALE_UP_FACTOR));
        told.put("vertex_min_parallelism", conf.get(AutoScalerOptions.VERTEX_MIN_PARALLELISM));
        told.put("vertex_max_parallelism", conf.get(AutoScalerOptions.VERTEX_MAX_PARALLELISM));
        told.put("scale_down_interval_minutes", conf.get(AutoScalerOptions.SCALE_DOWN_INTERVAL).toMinutes());
        told.put("scaling_effectiveness_detection_enabled", conf.get(AutoScalerOptions.SCALING_EFFECTIVENESS_DETECTION_ENABLED));
        told.put("scaling_effectiveness_threshold", conf.get(AutoScalerOptions.SCALING_EFFECTIVENESS_THRESHOLD));
        return conf;
    }

    static JobTopology topology(List<List<Integer>> shape, List<Map<String, Object>> vertices, List<IOMetrics> io) {
        List<VertexInfo> infos = new ArrayList<>();
        for (int v = 0; v < shape.size(); v++) {
            var told = vertices.get(v);
            Map<JobVertexID, ShipStrategy> inputs = new LinkedHashMap<>();
            for (int input : shape.get(v)) {
                inputs.put(id(input), (Boolean) told.get("keyed") ? ShipStrategy.HASH : ShipStrategy.REBALANCE);
            }
            var info = new VertexInfo(id(v), inputs, (Integer) told.get("parallelism"), (Integer) told.get("max_parallelism"), io.get(v));
            info.setNumSourcePartitions((Integer) told.get("partitions"));
            infos.add(info);
        }
        return new JobTopology(infos.toArray(new VertexInfo[0]));
    }

    static Map<String, Object> vertex(Random random, List<Integer> inputs) {
        return map(
                "inputs", inputs.stream().map(Vectors::name).toList(),
                "parallelism", 1 + random.nextInt(16),
                "max_parallelism", pick(random, List.of(128, 120, 97, 720)),
                "partitions", inputs.isEmpty() && random.nextBoolean() ? pick(random, List.of(12, 13, 24)) : 0,
                "keyed", !inputs.isEmpty() && random.nextBoolean());
    }

    static Map<String, Object> named(List<Map<String, Object>> vertices) {
        Map<String, Object> named = new LinkedHashMap<>();
        for (int v = 0; v < vertices.size(); v++) {
            named.put(name(v), vertices.get(v));
        }
        return named;
    }

    private static final List<ScalingMetric> SAMPLED =
            List.of(
                    ScalingMetric.NUM_RECORDS_IN,
                    ScalingMetric.NUM_RECORDS_OUT,
                    ScalingMetric.ACCUMULATED_BUSY_TIME,
                    ScalingMetric.LAG,
                    ScalingMetric.LOAD,
                    ScalingMetric.OBSERVED_TPR);

    static List<Object> evaluations(Random random) {
        List<Object> vectors = new ArrayList<>();
        for (int i = 0; i < 250; i++) {
            var shape = pick(random, SHAPES);
            Map<String, Object> told = new LinkedHashMap<>();
            var conf = options(random, told);
            List<Map<String, Object>> vertices = shape.stream().map(inputs -> vertex(random, inputs)).toList();
            List<IOMetrics> none = shape.stream().map(v -> new IOMetrics(0, 0, 0)).toList();
            var topology = topology(shape, vertices, none);
            TreeMap<Instant, CollectedMetrics> history = new TreeMap<>();
            List<Object> samples = new ArrayList<>();
            boolean quiet = random.nextInt(10) == 0;
            double[] counters = new double[3 * shape.size()];
            double[] lags = new double[shape.size()];
            long at = 0;
            int count = 2 + random.nextInt(5);
            for (int s = 0; s < count; s++) {
                at += 1 + (random.nextInt(4) == 0 ? random.nextInt(5000) : 30_000);
                Map<JobVertexID, Map<ScalingMetric, Double>> all = new HashMap<>();
                List<Object> row = new ArrayList<>();
                for (int v = 0; v < shape.size(); v++) {
                    Map<ScalingMetric, Double> sample = new EnumMap<>(ScalingMetric.class);
                    boolean source = shape.get(v).isEmpty();
                    counters[3 * v] += quiet ? 0 : random.nextInt(100_000);
                    counters[3 * v + 1] += quiet ? 0 : random.nextInt(100_000);
                    counters[3 * v + 2] += random.nextInt(30_000) - 1000;
                    lags[v] = Math.max(0, lags[v] + random.nextInt(40_000) - 18_000);
                    sample.put(ScalingMetric.NUM_RECORDS_IN, counters[3 * v]);
                    sample.put(ScalingMetric.NUM_RECORDS_OUT, counters[3 * v + 1]);
                    sample.put(ScalingMetric.ACCUMULATED_BUSY_TIME, counters[3 * v + 2]);
                    sample.put(ScalingMetric.LOAD, random.nextInt(9) == 0 ? pick(random, List.of(0.0, Double.NaN)) : random.nextInt(1001) / 1000.0);
                    if (source) {
                        sample.put(ScalingMetric.LAG, random.nextInt(4) == 0 ? 0.0 : lags[v]);
                        sample.put(
                                ScalingMetric.OBSERVED_TPR,
                                pick(random, List.of(Double.NaN, Double.POSITIVE_INFINITY, 1000.0 * (1 + random.nextInt(9)), 777.125)));
                    }
                    all.put(id(v), sample);
                    row.add(SAMPLED.stream().map(sample::get).toList());
                }
                history.put(Instant.ofEpochMilli(at), new CollectedMetrics(all, Map.of()));
                samples.add(List.of(at, row));
            }
            long restart = pick(random, List.of(300, 0, 61));
            Object found;
            try {
                var evaluated = new ScalingMetricEvaluator()
                        .evaluate(conf, new CollectedMetricHistory(topology, history, Instant.EPOCH), Duration.ofSeconds(restart));
                found = told(shape.size(), evaluated.getVertexMetrics());
            } catch (RuntimeException error) {
                found = error.getMessage();
            }
            vectors.add(map(
                    "parameters", told, "vertices", named(vertices), "samples", samples, "restart_seconds", restart, "evaluated", found));
        }
        return vectors;
    }

    /** What was evaluated of each vertex, in the order of the Python side's fields. */
    static Map<String, Object> told(int size, Map<JobVertexID, Map<ScalingMetric, EvaluatedScalingMetric>> metrics) {
        Map<String, Object> told = new LinkedHashMap<>();
        for (int v = 0; v < size; v++) {
            var m = metrics.get(id(v));
            told.put(
                    name(v),
                    map(
                            "target_data_rate", m.get(ScalingMetric.TARGET_DATA_RATE).getAverage(),
                            "catch_up_data_rate", m.get(ScalingMetric.CATCH_UP_DATA_RATE).getCurrent(),
                            "true_processing_rate", m.get(ScalingMetric.TRUE_PROCESSING_RATE).getAverage(),
                            "load", m.get(ScalingMetric.LOAD).getAverage(),
                            "scale_up_threshold", m.get(ScalingMetric.SCALE_UP_RATE_THRESHOLD).getCurrent(),
                            "scale_down_threshold", m.get(ScalingMetric.SCALE_DOWN_RATE_THRESHOLD).getCurrent()));
        }
        return told;
    }

    static List<Object> decisions(Random random) {
        List<Object> vectors = new ArrayList<>();
        for (int i = 0; i < 400; i++) {
            Map<String, Object> told = new LinkedHashMap<>();
            var conf = options(random, told);
            var vertex = vertex(random, random.nextBoolean() ? List.of() : List.of(0));
            int current = (Integer) vertex.get("parallelism");
            double rate = random.nextInt(12) == 0 ? pick(random, List.of(0.0, Double.NaN)) : random.nextInt(2_000_000) / 1000.0;
            double catchUp = random.nextInt(3) == 0 ? random.nextInt(500_000) / 1000.0 : 0.0;
            double capacity = random.nextInt(10) == 0
                    ? pick(random, List.of(0.0, Double.NaN, Double.POSITIVE_INFINITY))
                    : random.nextInt(4_000_000) / 1000.0;
            boolean backlog = random.nextInt(4) == 0;
            var restart = Duration.ofSeconds(pick(random, List.of(300, 0, 45)));
            Map<ScalingMetric, EvaluatedScalingMetric> metrics = new EnumMap<>(ScalingMetric.class);
            metrics.put(ScalingMetric.PARALLELISM, EvaluatedScalingMetric.of(current));
            metrics.put(ScalingMetric.MAX_PARALLELISM, EvaluatedScalingMetric.of((Integer) vertex.get("max_parallelism")));
            metrics.put(ScalingMetric.NUM_SOURCE_PARTITIONS, EvaluatedScalingMetric.of((Integer) vertex.get("partitions")));
            metrics.put(ScalingMetric.TARGET_DATA_RATE, EvaluatedScalingMetric.avg(rate));
            metrics.put(ScalingMetric.CATCH_UP_DATA_RATE, EvaluatedScalingMetric.of(catchUp));
            metrics.put(ScalingMetric.TRUE_PROCESSING_RATE, EvaluatedScalingMetric.avg(capacity));
            ScalingMetricEvaluator.computeProcessingRateThresholds(metrics, conf, backlog, restart);

            TreeMap<Instant, ScalingSummary> history = new TreeMap<>();
            List<Object> past = new ArrayList<>();
            for (int h = random.nextInt(4); h > 0; h--) {
                int before = 1 + random.nextInt(16);
                int after = h == 1 && random.nextInt(3) > 0 ? current : 1 + random.nextInt(16);
                if (before == after) {
                    after++;
                }
                double was = random.nextInt(8) == 0 ? Double.POSITIVE_INFINITY : random.nextInt(2_000_000) / 1000.0;
                double hoped = random.nextInt(4_000_000) / 1000.0;
                Map<ScalingMetric, EvaluatedScalingMetric> then = new EnumMap<>(ScalingMetric.class);
                then.put(ScalingMetric.TRUE_PROCESSING_RATE, EvaluatedScalingMetric.avg(was));
                then.put(ScalingMetric.EXPECTED_PROCESSING_RATE, EvaluatedScalingMetric.of(hoped));
                history.put(NOON.minusSeconds(60L * h), new ScalingSummary(before, after, then));
                past.add(List.of(before, after, was, hoped));
            }
            Integer since = random.nextBoolean() ? pick(random, List.of(0, 1, 599, 600, 601, 3599, 3600, 4000)) : null;
            var delayed = new DelayedScaleDown();
            if (since != null) {
                delayed.updateTriggerTime(id(1), NOON.minusSeconds(since));
            }
            var events = new Vectors.Events();
            var scaler = new JobVertexScaler<String, JobAutoScalerContext<String>>(events);
            scaler.setClock(Clock.fixed(NOON, ZoneOffset.UTC));
            var ships = ships((Boolean) vertex.get("keyed"));
            var change = scaler.computeScaleTargetParallelism(Vectors.context(conf), id(1), ships, metrics, history, restart, delayed);
            var expected = metrics.get(ScalingMetric.EXPECTED_PROCESSING_RATE);
            vectors.add(map(
                    "parameters", told, "vertex", vertex, "target_data_rate", rate, "catch_up_data_rate", catchUp,
                    "true_processing_rate", capacity, "backlog", backlog, "restart_seconds", restart.toSeconds(),
                    "history", past, "delayed_for_seconds", since,
                    "scale_up_threshold", metrics.get(ScalingMetric.SCALE_UP_RATE_THRESHOLD).getCurrent(),
                    "scale_down_threshold", metrics.get(ScalingMetric.SCALE_DOWN_RATE_THRESHOLD).getCurrent(),
                    "change", change.getChangeType().name(), "parallelism", change.getNewParallelism(),
                    "expected_processing_rate", expected == null ? null : expected.getCurrent(),
                    "delayed_after_seconds",
                            delayed.getFirstTriggerTimeForVertex(id(1)).map(t -> Duration.between(t, NOON).toSeconds()).orElse(null),
                    "within", ScalingExecutor.allRequiredVerticesWithinUtilizationTarget(Map.of(id(1), metrics), java.util.Set.of(id(1))),
                    "events", events.reasons));
        }
        return vectors;
    }

    private Pure() {}
}
