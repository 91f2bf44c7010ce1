package dev.weir.sample;

import java.io.IOException;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Adds what is known about an order's key, and remembers the order. */
final class Enrich extends KeyedProcessFunction<String, Order, EnrichedOrder> {

  private static final long serialVersionUID = 1L;

  private final Meter meter;
  private final int stateBytes;
  private transient ValueState<Profile> profile;

  /**
   * @param stateBytes size of the state of one key
   */
  Enrich(Meter meter, int stateBytes) {
    this.meter = meter;
    this.stateBytes = stateBytes;
  }

  @Override
  public void open(OpenContext context) {
    meter.open(
        getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks(),
        getRuntimeContext()::registerUserCodeClassLoaderReleaseHookIfAbsent);
    profile = getRuntimeContext().getState(new ValueStateDescriptor<>("profile", Profile.class));
  }

  @Override
  public void processElement(Order order, Context context, Collector<EnrichedOrder> out) throws IOException {
    long started = meter.start();
    Profile known = profile.value();
    Profile next = (known == null ? Profile.of(order.key(), stateBytes) : known).withOneMore();
    profile.update(next);
    out.collect(
        new EnrichedOrder(order.producedAtMillis(), order.key(), order.payload().length, next.orders()));
    meter.finish(started);
  }
}
