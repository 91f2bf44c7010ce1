package dev.weir.sample.streams;

import dev.weir.sample.Order;
import dev.weir.sample.ServiceTime;
import java.util.Optional;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Decodes a paid order, takes its service time and adds it to its customer's totals.
 *
 * <p>A processor and not the DSL's aggregate: records are keyed by order but partitioned by customer, so that the state of
 * a customer is in one task already. The DSL would write all records to a repartition topic first.
 */
final class Aggregate implements Processor<String, PaidOrder, String, byte[]> {

  static final String STORE = "customer-totals";

  private final Costs costs;
  private final ServiceTime time;
  private ProcessorContext<String, byte[]> context;
  private KeyValueStore<String, CustomerTotals> store;
  private Sensor badRecords;

  Aggregate(Costs costs, ServiceTime time) {
    this.costs = costs;
    this.time = time;
  }

  @Override
  public void init(ProcessorContext<String, byte[]> context) {
    this.context = context;
    store = context.getStateStore(STORE);
    badRecords =
        context
            .metrics()
            .addRateTotalSensor("weir-sample", context.taskId().toString(), "bad-records", Sensor.RecordingLevel.INFO);
  }

  @Override
  public void process(Record<String, PaidOrder> record) {
    long started = time.now();
    Optional<Order> order = decoded(record.value().order());
    Optional<Order> payment = decoded(record.value().payment());
    if (order.isEmpty() || payment.isEmpty()) {
      badRecords.record();
      return;
    }
    String customer = order.get().key();
    CustomerTotals before = store.get(customer);
    CustomerTotals totals = (before == null ? CustomerTotals.NONE : before).plus(order.get(), payment.get());
    store.put(customer, totals);
    byte[] line = totals.line(order.get(), payment.get(), context.currentSystemTimeMs());
    context.forward(record.withKey(customer).withValue(line));
    time.pay(costs.serviceNanos(), started);
  }

  private static Optional<Order> decoded(byte[] line) {
    return line == null ? Optional.empty() : Order.read(line);
  }

  @Override
  public void close() {
    context.metrics().removeSensor(badRecords);
  }
}
