package dev.weir.sample;

import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;

/**
 * Orders from Kafka, parsed, enriched from keyed state, totalled per key and second, back to Kafka: five vertices that
 * can be scaled one by one, because nothing is chained. Arguments: see the README of workloads.
 */
public final class SampleJob {

  private SampleJob() {}

  public static void main(String[] arguments) throws Exception {
    Options options = Options.of(arguments);
    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.getExecutionEnvironment(configuration(options));
    environment.disableOperatorChaining();
    environment.setMaxParallelism(options.maxParallelism);
    build(environment, options);
    environment.execute(options.jobName);
  }

  private static Configuration configuration(Options options) {
    Configuration configuration = new Configuration();
    configuration.set(
        CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(options.checkpointIntervalMillis));
    configuration.set(CheckpointingOptions.ENABLE_UNALIGNED, false);
    configuration.set(
        CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
    // A type that would fall back to Kryo is a mistake here: it would cost more than the modelled service time.
    configuration.set(PipelineOptions.GENERIC_TYPES, false);
    return configuration;
  }

  private static void build(StreamExecutionEnvironment environment, Options options) {
    SingleOutputStreamOperator<byte[]> lines =
        at(
            environment.fromSource(source(options), WatermarkStrategy.noWatermarks(), Options.SOURCE),
            Options.SOURCE,
            options);
    // Rebalanced, not forwarded: a forward edge between different parallelisms would use one channel only.
    SingleOutputStreamOperator<Order> orders =
        at(lines.rebalance().process(new Parse(options.meterOf(Options.PARSE))), Options.PARSE, options);
    SingleOutputStreamOperator<EnrichedOrder> enriched =
        at(
            orders
                .keyBy(Order::key)
                .process(new Enrich(options.meterOf(Options.ENRICH), options.stateBytes)),
            Options.ENRICH,
            options);
    DataStream<Totals> totals =
        at(
            enriched
                .keyBy(EnrichedOrder::key)
                .process(
                    new Aggregate(options.meterOf(Options.AGGREGATE), options.windowMillis, options.bounded)),
            Options.AGGREGATE,
            options);
    var sink =
        totals
            .rebalance()
            .sinkTo(
                new TotalsSink(options.bootstrapServers, options.outputTopic, options.meterOf(Options.SINK)))
            .name(Options.SINK)
            .uid(Options.SINK);
    if (options.parallelismOf(Options.SINK) != null) {
      sink.setParallelism(options.parallelismOf(Options.SINK));
    }
  }

  private static KafkaSource<byte[]> source(Options options) {
    KafkaSourceBuilder<byte[]> source =
        KafkaSource.<byte[]>builder()
            .setBootstrapServers(options.bootstrapServers)
            .setTopics(options.inputTopic)
            .setGroupId(options.groupId)
            .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
            .setValueOnlyDeserializer(new Lines())
            .setProperty("partition.discovery.interval.ms", Long.toString(options.partitionDiscoveryMillis))
            .setProperty("commit.offsets.on.checkpoint", "true")
            // Little is fetched ahead, so that pendingRecords, which does not see it, is nearly exact.
            .setProperty("max.poll.records", "250");
    if (options.bounded) {
      source.setBounded(OffsetsInitializer.latest());
    }
    return source.build();
  }

  private static <T> SingleOutputStreamOperator<T> at(
      SingleOutputStreamOperator<T> operator, String name, Options options) {
    operator.name(name).uid(name);
    if (options.parallelismOf(name) != null) {
      operator.setParallelism(options.parallelismOf(name));
    }
    return operator;
  }
}
