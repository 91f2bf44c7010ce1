package dev.weir.sample;

import java.io.IOException;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.streaming.api.TimeDomain;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Totals of each key in tumbling windows of processing time.
 *
 * <p>A process function and not Flink's window operator, because a record's service time is to be paid when the record
 * arrives, by code that knows its subtask's parallelism; a window's aggregate function may not be a rich one.
 */
final class Aggregate extends KeyedProcessFunction<String, EnrichedOrder, Totals> {

  private static final long serialVersionUID = 1L;

  private final Meter meter;
  private final long windowMillis;
  private final boolean bounded;
  private transient ValueState<Totals> window;

  /**
   * @param bounded whether the input ends: Flink then drops timers of processing time, and with them open windows, so
   *     that each window also gets one of event time, which fires when the last watermark says that no more will come
   */
  Aggregate(Meter meter, long windowMillis, boolean bounded) {
    this.meter = meter;
    this.windowMillis = windowMillis;
    this.bounded = bounded;
  }

  @Override
  public void open(OpenContext context) {
    meter.open(
        getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks(),
        getRuntimeContext()::registerUserCodeClassLoaderReleaseHookIfAbsent);
    window = getRuntimeContext().getState(new ValueStateDescriptor<>("window", Totals.class));
  }

  @Override
  public void processElement(EnrichedOrder order, Context context, Collector<Totals> out) throws IOException {
    long started = meter.start();
    long now = context.timerService().currentProcessingTime();
    long end = now - now % windowMillis + windowMillis;
    Totals open = window.value();
    if (open != null && open.windowEndMillis() == end) {
      window.update(open.plus(order));
    } else {
      if (open != null) {
        // The clock is already in the next window but the last one's timer has not had its turn.
        context.timerService().deleteProcessingTimeTimer(open.windowEndMillis());
        out.collect(open);
      }
      window.update(Totals.of(order, end));
      context.timerService().registerProcessingTimeTimer(end);
      if (bounded) {
        context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
      }
    }
    meter.finish(started);
  }

  @Override
  public void onTimer(long timestamp, OnTimerContext context, Collector<Totals> out) throws IOException {
    Totals open = window.value();
    boolean over = context.timeDomain() == TimeDomain.EVENT_TIME;
    if (open != null && (over || open.windowEndMillis() <= timestamp)) {
      out.collect(open);
      window.clear();
    }
  }
}
