package dev.weir.sample;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Writes totals to Kafka, at least once: everything is flushed before a checkpoint completes.
 *
 * <p>Around {@link KafkaSink}, for two reasons: its writer's records can be made to cost time, and a sink that cannot
 * commit has no committer, which would be a vertex of its own that does nothing under this guarantee.
 */
final class TotalsSink implements Sink<Totals> {

  private static final long serialVersionUID = 1L;

  private final KafkaSink<Totals> kafka;
  private final Meter meter;

  TotalsSink(String bootstrapServers, String topic, Meter meter) {
    this.meter = meter;
    this.kafka =
        KafkaSink.<Totals>builder()
            .setBootstrapServers(bootstrapServers)
            .setRecordSerializer(new ToRecords(topic))
            .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            .setProperty("linger.ms", "5")
            .setProperty("acks", "all")
            .build();
  }

  @Override
  public SinkWriter<Totals> createWriter(WriterInitContext context) throws IOException {
    meter.open(
        context.getTaskInfo().getNumberOfParallelSubtasks(),
        context.getUserCodeClassLoader()::registerReleaseHookIfAbsent);
    return new Writer(kafka.createWriter(context), meter);
  }

  private record Writer(SinkWriter<Totals> kafka, Meter meter) implements SinkWriter<Totals> {

    @Override
    public void write(Totals totals, Context context) throws IOException, InterruptedException {
      long started = meter.start();
      kafka.write(totals, context);
      meter.finish(started);
    }

    @Override
    public void flush(boolean endOfInput) throws IOException, InterruptedException {
      kafka.flush(endOfInput);
    }

    @Override
    public void close() throws Exception {
      kafka.close();
    }
  }

  private record ToRecords(String topic) implements KafkaRecordSerializationSchema<Totals> {

    private static final long serialVersionUID = 1L;

    @Override
    public ProducerRecord<byte[], byte[]> serialize(Totals totals, KafkaSinkContext context, Long timestamp) {
      return new ProducerRecord<>(topic, totals.key().getBytes(StandardCharsets.UTF_8), totals.line());
    }
  }
}
