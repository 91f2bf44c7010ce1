package dev.weir.sample;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.groups.SourceReaderMetricGroup;

/** Reads the one split of a {@link ChangeDataSource}; a subtask without it is idle. Used by one task thread. */
final class ChangeDataReader implements SourceReader<String, ChangeDataSource.Position> {

  private static final long POLL_MILLIS = 20;

  private final SourceReaderContext context;
  private final ChangeDataSource source;
  private final ChangeDataLog log;
  private final Counter records;
  private volatile long position = -1;

  ChangeDataReader(SourceReaderContext context, ChangeDataSource source) {
    this.context = context;
    this.source = source;
    this.log = new ChangeDataLog(Path.of(source.log()));
    SourceReaderMetricGroup metrics = context.metricGroup();
    this.records = metrics.getIOMetricGroup().getNumRecordsInCounter();
    if (source.reportsPending()) {
      ChangeDataLog own = new ChangeDataLog(Path.of(source.log()));
      metrics.setPendingRecordsGauge(() -> position < 0 ? 0L : pending(own));
    }
  }

  private long pending(ChangeDataLog own) {
    try {
      return Math.max(0, own.endAt(System.currentTimeMillis()) - position);
    } catch (IOException unreadable) {
      return -1L;
    }
  }

  @Override
  public void start() {
    if (position < 0) {
      context.sendSplitRequest();
    }
  }

  @Override
  public InputStatus pollNext(ReaderOutput<String> output) throws Exception {
    long now = System.currentTimeMillis();
    if (position >= 0 && position < log.endAt(now)) {
      output.collect("row " + position, now);
      records.inc();
      position++;
      return InputStatus.MORE_AVAILABLE;
    }
    if (!source.waitsInPoll() || position < 0) {
      return InputStatus.NOTHING_AVAILABLE;
    }
    // As a source that asks its database and waits for the answer: Flink counts this as busy time.
    Thread.sleep(POLL_MILLIS);
    return InputStatus.MORE_AVAILABLE;
  }

  @Override
  public CompletableFuture<Void> isAvailable() {
    return CompletableFuture.runAsync(
        () -> {}, CompletableFuture.delayedExecutor(POLL_MILLIS, TimeUnit.MILLISECONDS));
  }

  @Override
  public List<ChangeDataSource.Position> snapshotState(long checkpointId) {
    return position < 0 ? List.of() : List.of(new ChangeDataSource.Position(position));
  }

  @Override
  public void addSplits(List<ChangeDataSource.Position> splits) {
    position = splits.get(0).next();
  }

  @Override
  public void notifyNoMoreSplits() {}

  @Override
  public void close() {}
}
