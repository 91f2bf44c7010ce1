package org.apache.flink.autoscaler;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Collectors;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.autoscaler.event.AutoScalerEventHandler;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.jobgraph.JobVertexID;

/**
 * Calls the original with seeded inputs and writes inputs and outputs as JSON. It lives in the original's package because the calls it
 * makes are protected there.
 */
public final class Vectors {

    /** Events by reason, in the order in which the original told them. */
    static final class Events implements AutoScalerEventHandler<String, JobAutoScalerContext<String>> {
        final List<String> reasons = new ArrayList<>();

        @Override
        public void handleEvent(
                JobAutoScalerContext<String> context,
                Type type,
                String reason,
                String message,
                String key,
                java.time.Duration interval) {
            reasons.add(reason.equals("AutoscalerError") ? reason + ": " + message : reason);
        }
    }

    public static void main(String[] args) throws Exception {
        Path into = Path.of(args[0]);
        write(into.resolve("scale.json"), Pure.scales(new Random(1)));
        write(into.resolve("evaluate.json"), Pure.evaluations(new Random(2)));
        write(into.resolve("decide.json"), Pure.decisions(new Random(3)));
        write(into.resolve("stories.json"), Stories.stories(new Random(4)));
    }

    static JobAutoScalerContext<String> context(Configuration conf) {
        return new JobAutoScalerContext<>(
                "job", new JobID(0, 1), JobStatus.RUNNING, conf, new UnregisteredMetricsGroup(), () -> null);
    }

    static JobVertexID id(int vertex) {
        return new JobVertexID(0, vertex);
    }

    static String name(int vertex) {
        return "v" + vertex;
    }

    static <T> T pick(Random random, List<T> values) {
        return values.get(random.nextInt(values.size()));
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    private static void write(Path file, List<?> vectors) throws Exception {
        String lines = vectors.stream().map(Vectors::json).collect(Collectors.joining(",\n"));
        Files.writeString(file, "[\n" + lines + "\n]\n");
        System.out.println(file + ": " + vectors.size());
    }

    /** JSON has no NaN and no infinity: they are written as strings. */
    static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                    .map(e -> json(e.getKey()) + ":" + json(e.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection<?> list) {
            return list.stream().map(Vectors::json).collect(Collectors.joining(",", "[", "]"));
        }
        if (value instanceof Double number && !Double.isFinite(number)) {
            return '"' + number.toString() + '"';
        }
        if (value instanceof Double number && number == Math.rint(number) && Math.abs(number) < 1e15) {
            return Long.toString(number.longValue());
        }
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        return '"' + value.toString().replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + '"';
    }

    private Vectors() {}
}
