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
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.flink.autoscaler.config.AutoScalerOptions;
import org.apache.flink.autoscaler.metrics.FlinkMetric;
import org.apache.flink.autoscaler.metrics.MetricAggregator;
import org.apache.flink.autoscaler.realizer.ScalingRealizer;
import org.apache.flink.autoscaler.state.AutoScalerStateStore;
import org.apache.flink.autoscaler.state.InMemoryAutoScalerStateStore;
import org.apache.flink.autoscaler.topology.IOMetrics;
import org.apache.flink.autoscaler.topology.JobTopology;
import org.apache.flink.autoscaler.tuning.ConfigChanges;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.jobgraph.JobVertexID;
import org.apache.flink.runtime.rest.messages.job.JobDetailsInfo;
import org.apache.flink.runtime.rest.messages.job.metrics.AggregatedMetric;
import org.apache.flink.runtime.rest.messages.job.metrics.Metric;

/** Whole jobs through the original's own loop: load moves, samples are collected, decisions restart the job, and the loop goes on. */
final class Stories {

    private static final long START_MS = Instant.parse("2026-01-01T00:00:00Z").toEpochMilli();

    /** Readings are handed in instead of being asked of a cluster. */
    static final class Given extends ScalingMetricCollector<String, JobAutoScalerContext<String>> {
        JobTopology topology;
        Instant runningSince;
        Map<JobVertexID, Map<FlinkMetric, AggregatedMetric>> metrics;

        @Override
        public JobDetailsInfo getJobDetailsInfo(JobAutoScalerContext<String> context, Duration timeout) {
            return null;
        }

        @Override
        protected Instant getJobRunningTs(JobDetailsInfo info) {
            return runningSince;
        }

        @Override
        protected JobTopology getJobTopology(
                JobAutoScalerContext<String> context,
                AutoScalerStateStore<String, JobAutoScalerContext<String>> store,
                JobDetailsInfo info) {
            return topology;
        }

        @Override
        protected Map<JobVertexID, Map<String, FlinkMetric>> queryFilteredMetricNames(
                JobAutoScalerContext<String> context, JobTopology topology) {
            return Map.of();
        }

        @Override
        protected Map<JobVertexID, Map<FlinkMetric, AggregatedMetric>> queryAllAggregatedMetrics(
                JobAutoScalerContext<String> context, Map<JobVertexID, Map<String, FlinkMetric>> names) {
            return metrics;
        }

        @Override
        protected Map<FlinkMetric, Metric> queryJmMetrics(JobAutoScalerContext<String> context) {
            return Map.of();
        }

        @Override
        protected Map<FlinkMetric, AggregatedMetric> queryTmMetrics(JobAutoScalerContext<String> context) {
            return Map.of();
        }
    }

    static final class Nowhere implements ScalingRealizer<String, JobAutoScalerContext<String>> {
        @Override
        public void realizeParallelismOverrides(JobAutoScalerContext<String> context, Map<String, String> overrides) {}

        @Override
        public void realizeConfigOverrides(JobAutoScalerContext<String> context, ConfigChanges changes) {}
    }

    static List<Object> stories(Random random) throws Exception {
        List<Object> stories = new ArrayList<>();
        for (int i = 0; i < 16; i++) {
            stories.add(story(random));
        }
        return stories;
    }

    private static Map<String, Object> story(Random random) throws Exception {
        var shape = pick(random, Pure.SHAPES.subList(1, Pure.SHAPES.size()));
        int size = shape.size();
        Map<String, Object> told = new LinkedHashMap<>();
        Configuration conf = Pure.options(random, told);
        conf.set(AutoScalerOptions.AUTOSCALER_ENABLED, true);
        conf.set(AutoScalerOptions.METRICS_WINDOW, Duration.ofMinutes(pick(random, List.of(15, 5, 3))));
        conf.set(AutoScalerOptions.STABILIZATION_INTERVAL, Duration.ofMinutes(pick(random, List.of(5, 1, 0))));
        conf.set(AutoScalerOptions.PREFER_TRACKED_RESTART_TIME, random.nextBoolean());
        conf.set(AutoScalerOptions.VERTEX_SCALING_HISTORY_AGE, Duration.ofHours(pick(random, List.of(24, 1))));
        told.put("metrics_window_minutes", conf.get(AutoScalerOptions.METRICS_WINDOW).toMinutes());
        told.put("stabilization_interval_minutes", conf.get(AutoScalerOptions.STABILIZATION_INTERVAL).toMinutes());
        told.put("restart_time_tracking_enabled", conf.get(AutoScalerOptions.PREFER_TRACKED_RESTART_TIME));
        told.put("history_max_age_hours", conf.get(AutoScalerOptions.VERTEX_SCALING_HISTORY_AGE).toHours());

        List<Map<String, Object>> vertices = new ArrayList<>();
        double[] perSubtask = new double[size];
        double[] ratio = new double[size];
        for (int v = 0; v < size; v++) {
            vertices.add(Pure.vertex(random, shape.get(v)));
            perSubtask[v] = 100 + random.nextInt(900);
            ratio[v] = pick(random, List.of(1.0, 1.0, 0.5, 2.0));
        }
        var fixed = new ArrayList<>(vertices.stream().map(v -> (Object) new LinkedHashMap<>(v)).toList());

        var events = new Vectors.Events();
        var store = new InMemoryAutoScalerStateStore<String, JobAutoScalerContext<String>>();
        var collector = new Given();
        var executor = new ScalingExecutor<>(events, store);
        var scaler = new JobAutoScalerImpl<>(collector, new ScalingMetricEvaluator(), executor, events, new Nowhere(), store);
        var vertexScaler = ScalingExecutor.class.getDeclaredField("jobVertexScaler");
        vertexScaler.setAccessible(true);

        long now = START_MS;
        long running = START_MS - 1000L * random.nextInt(100);
        double load = 500 + random.nextInt(4000);
        double[] in = new double[size];
        double[] out = new double[size];
        double[] busy = new double[size];
        double[] backlog = new double[size];
        int[] parallelism = vertices.stream().mapToInt(v -> (Integer) v.get("parallelism")).toArray();
        long step = pick(random, List.of(30_000L, 60_000L, 47_000L));
        List<Object> turns = new ArrayList<>();
        for (int turn = 0; turn < 60; turn++) {
            if (turn % 15 == 14) {
                load = pick(random, List.of(0.0, load * 3, load / 4, load / 2, 500.0 + random.nextInt(4000)));
            }
            double seconds = step / 1000.0;
            Map<JobVertexID, Map<FlinkMetric, AggregatedMetric>> metrics = new HashMap<>();
            List<Object> readings = new ArrayList<>();
            double[] sent = new double[size];
            List<IOMetrics> io = new ArrayList<>();
            for (int v = 0; v < size; v++) {
                boolean source = shape.get(v).isEmpty();
                double arriving = source ? load * (0.9 + random.nextInt(200) / 1000.0) : 0;
                for (int input : shape.get(v)) {
                    arriving += sent[input];
                }
                double most = perSubtask[v] * parallelism[v];
                double taken = Math.min(arriving + (source ? backlog[v] / seconds : 0), most);
                backlog[v] = source ? Math.max(0, backlog[v] + (arriving - taken) * seconds) : 0;
                in[v] = Math.floor(in[v] + taken * seconds);
                sent[v] = taken * ratio[v];
                out[v] = Math.floor(out[v] + sent[v] * seconds);
                double share = most == 0 ? 0 : Math.min(1, taken / most);
                busy[v] += Math.floor(share * 1000 * parallelism[v] * seconds);
                double mean = Math.rint(share * 1_000_000) / 1000;
                double busiest = Math.min(1000, mean * (1 + random.nextInt(100) / 1000.0));
                double blocked = pick(random, List.of(0.0, 0.0, 150.0, 400.5));
                double rate = Math.rint(taken * 1000) / 1000;
                Double pending = source && turn % 7 != 6 ? Math.floor(backlog[v]) : null;
                Map<FlinkMetric, AggregatedMetric> told1 = new HashMap<>();
                told1.put(FlinkMetric.BUSY_TIME_PER_SEC, new AggregatedMetric("", Double.NaN, busiest, mean, Double.NaN, Double.NaN));
                if (source) {
                    told1.put(FlinkMetric.SOURCE_TASK_NUM_RECORDS_IN_PER_SEC, sum(rate));
                    told1.put(FlinkMetric.BACKPRESSURE_TIME_PER_SEC, new AggregatedMetric("", Double.NaN, Double.NaN, blocked, Double.NaN, Double.NaN));
                    if (pending != null) {
                        told1.put(FlinkMetric.PENDING_RECORDS, sum(pending));
                    }
                }
                metrics.put(id(v), told1);
                io.add(new IOMetrics((long) in[v], (long) out[v], busy[v]));
                var reading = new ArrayList<Object>(List.of((long) in[v], (long) out[v], busy[v], busiest, mean, rate, blocked));
                reading.add(pending);
                readings.add(reading);
                vertices.get(v).put("parallelism", parallelism[v]);
            }
            collector.topology = Pure.topology(shape, vertices, io);
            collector.runningSince = Instant.ofEpochMilli(running);
            collector.metrics = metrics;
            var clock = Clock.fixed(Instant.ofEpochMilli(now), ZoneOffset.UTC);
            collector.setClock(clock);
            scaler.setClock(clock);
            ((JobVertexScaler<?, ?>) vertexScaler.get(executor)).setClock(clock);
            var context = Vectors.context(conf.clone());
            scaler.lastEvaluatedMetrics.clear();
            events.reasons.clear();
            int before = decisions(store, context);
            scaler.scale(context);

            boolean changed = decisions(store, context) > before || scaledNow(store, context, now);
            var evaluated = scaler.lastEvaluatedMetrics.get("job");
            Map<String, Object> overrides = new LinkedHashMap<>();
            Map<String, Object> delayed = new LinkedHashMap<>();
            for (int v = 0; v < size; v++) {
                String override = store.getParallelismOverrides(context).get(id(v).toString());
                if (changed) {
                    overrides.put(name(v), Integer.valueOf(override));
                }
                Instant since = store.getDelayedScaleDown(context).getFirstTriggerTime().get(id(v));
                if (since != null) {
                    delayed.put(name(v), since.toEpochMilli() - START_MS);
                }
            }
            turns.add(map(
                    "at_ms", now - START_MS, "running_ms", running - START_MS, "readings", readings,
                    "evaluated", evaluated == null ? null : Pure.told(size, evaluated.getVertexMetrics()),
                    "overrides", changed ? overrides : null, "delayed", delayed, "events", List.copyOf(events.reasons),
                    "restart_seconds", store.getScalingTracking(context).getMaxRestartTimeOrDefault(conf).toSeconds()));

            now += step + random.nextInt(3) * 1000L;
            if (changed) {
                int[] wanted = parallelism.clone();
                for (int v = 0; v < size; v++) {
                    wanted[v] = (Integer) overrides.get(name(v));
                }
                parallelism = wanted;
                running = now - 500 - random.nextInt(20_000);
                in = new double[size];
                out = new double[size];
                busy = new double[size];
            }
        }
        Map<String, Object> graph = new LinkedHashMap<>();
        for (int v = 0; v < size; v++) {
            graph.put(name(v), fixed.get(v));
        }
        return map("parameters", told, "vertices", graph, "turns", turns);
    }

    private static int decisions(AutoScalerStateStore<String, JobAutoScalerContext<String>> store, JobAutoScalerContext<String> context)
            throws Exception {
        return store.getScalingTracking(context).getScalingRecords().size();
    }

    private static boolean scaledNow(
            AutoScalerStateStore<String, JobAutoScalerContext<String>> store, JobAutoScalerContext<String> context, long now)
            throws Exception {
        return store.getScalingTracking(context).getScalingRecords().containsKey(Instant.ofEpochMilli(now));
    }

    private static AggregatedMetric sum(double value) {
        return new AggregatedMetric("", Double.NaN, Double.NaN, Double.NaN, value, Double.NaN);
    }

    private Stories() {}
}
