package dev.weir.sample.streams;

import dev.weir.sample.ServiceTime;
import java.time.Duration;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowBytesStoreSupplier;

/**
 * Orders joined with their payments within three seconds, decoded, and totalled by customer: one subtopology, so one task
 * for each partition.
 */
final class OrderTopology {

  static final Duration JOIN_WINDOW = Duration.ofSeconds(3);

  /** Lateness of a record that is still joined: a task may read one input before the other. */
  static final Duration GRACE = Duration.ofSeconds(10);

  /** So that the changelogs of the join's windows, which are read after a task has moved, stay short. */
  private static final Map<String, String> SHORT_SEGMENTS = Map.of("segment.ms", "30000");

  private static final Serde<String> KEYS = Serdes.String();
  private static final Serde<byte[]> LINES = Serdes.ByteArray();

  private OrderTopology() {}

  static Topology of(Options options, Costs costs, Supplier<ServiceTime> time) {
    StreamsBuilder builder = new StreamsBuilder();
    builder.addStateStore(
        Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore(Aggregate.STORE), KEYS, CustomerTotals.serde(options.stateBytes)));
    KStream<String, byte[]> orders = builder.stream(options.ordersTopic, Consumed.with(KEYS, LINES));
    KStream<String, byte[]> payments = builder.stream(options.paymentsTopic, Consumed.with(KEYS, LINES));
    orders
        .join(payments, PaidOrder::new, JoinWindows.ofTimeDifferenceAndGrace(JOIN_WINDOW, GRACE), windows())
        .process(() -> new Aggregate(costs, time.get()), Aggregate.STORE)
        .to(options.outputTopic, Produced.with(KEYS, LINES));
    return builder.build();
  }

  private static StreamJoined<String, byte[], byte[]> windows() {
    return StreamJoined.<String, byte[], byte[]>with(window("orders-window"), window("payments-window"))
        .withKeySerde(KEYS)
        .withValueSerde(LINES)
        .withOtherValueSerde(LINES)
        .withName("join")
        .withLoggingEnabled(SHORT_SEGMENTS);
  }

  /** In memory: seconds of records, where RocksDB would keep three databases for each task. */
  private static WindowBytesStoreSupplier window(String name) {
    Duration size = JOIN_WINDOW.multipliedBy(2);
    return Stores.inMemoryWindowStore(name, size.plus(GRACE), size, true);
  }
}
