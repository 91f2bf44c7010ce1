package dev.weir.sample;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ParameterTool;

/**
 * Sources of other kinds than Kafka before one operator whose records cost time. Arguments: see the README of workloads.
 */
public final class SourcesJob {

  private SourcesJob() {}

  public static void main(String[] arguments) throws Exception {
    ParameterTool given = ParameterTool.fromArgs(arguments);
    Configuration configuration = new Configuration();
    configuration.set(
        CheckpointingOptions.CHECKPOINTING_INTERVAL,
        Duration.ofMillis(given.getLong("checkpoint-interval-ms", 1000)));
    configuration.set(
        CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.getExecutionEnvironment(configuration);
    environment.disableOperatorChaining();
    environment.setMaxParallelism(120);
    List<DataStream<String>> streams = new ArrayList<>();
    for (String kind : given.getRequired("sources").split(",")) {
      streams.add(
          environment
              .fromSource(
                  source(kind, given), WatermarkStrategy.noWatermarks(), kind, Types.STRING)
              .uid(kind)
              .setParallelism(1));
    }
    DataStream<String> first = streams.remove(0);
    DataStream<String> all = streams.isEmpty() ? first : first.union(streams.toArray(DataStream[]::new));
    Meter meter = new Meter("work", new Cost(given.getDouble("service-time-us", 1000), 0, null), null);
    all.rebalance()
        .process(new Work(meter))
        .returns(Types.STRING)
        .name("work")
        .uid("work")
        .sinkTo(new DiscardingSink<>())
        .name("sink")
        .uid("sink");
    environment.execute(given.getRequired("job-name"));
  }

  private static Source<String, ?, ?> source(String kind, ParameterTool given) {
    switch (kind) {
      case "generator":
        GeneratorFunction<Long, String> generator = number -> "row " + number;
        return new DataGeneratorSource<>(
            generator,
            Long.MAX_VALUE,
            RateLimiterStrategy.perSecond(given.getDouble("rate", 300)),
            Types.STRING);
      case "files":
        FileSource.FileSourceBuilder<String> files =
            FileSource.forRecordStreamFormat(new TextLineInputFormat(), new Path(given.getRequired("folder")));
        return given.getBoolean("watch", false)
            ? files.monitorContinuously(Duration.ofSeconds(1)).build()
            : files.build();
      case "changes":
        return new ChangeDataSource(
            given.getRequired("change-log"),
            given.getBoolean("pending", false),
            given.getBoolean("waits-in-poll", false));
      default:
        throw new IllegalArgumentException("--sources: no such source: " + kind);
    }
  }

  private static final class Work extends ProcessFunction<String, String> {

    private static final long serialVersionUID = 1L;

    private final Meter meter;

    Work(Meter meter) {
      this.meter = meter;
    }

    @Override
    public void open(OpenContext context) {
      meter.open(
          getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks(),
          getRuntimeContext()::registerUserCodeClassLoaderReleaseHookIfAbsent);
    }

    @Override
    public void processElement(String row, Context context, Collector<String> out) {
      long started = meter.start();
      out.collect(row);
      meter.finish(started);
    }
  }
}
