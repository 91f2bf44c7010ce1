package dev.weir.sample;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.metrics.Counter;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.util.Collector;

/** Lines to orders. What is no order is counted ({@code badRecords}) and dropped: one bad record stops nobody. */
final class Parse extends ProcessFunction<byte[], Order> {

  private static final long serialVersionUID = 1L;

  private final Meter meter;
  private transient Counter badRecords;

  Parse(Meter meter) {
    this.meter = meter;
  }

  @Override
  public void open(OpenContext context) {
    meter.open(
        getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks(),
        getRuntimeContext()::registerUserCodeClassLoaderReleaseHookIfAbsent);
    badRecords = getRuntimeContext().getMetricGroup().counter("badRecords");
  }

  @Override
  public void processElement(byte[] line, Context context, Collector<Order> out) {
    long started = meter.start();
    Order.read(line).ifPresentOrElse(out::collect, badRecords::inc);
    meter.finish(started);
  }
}
