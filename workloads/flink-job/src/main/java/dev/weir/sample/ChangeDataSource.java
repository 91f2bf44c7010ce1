package dev.weir.sample;

import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * A source like those of change data: one log, read by one subtask, from the position of the last checkpoint.
 *
 * @param log file of the {@link ChangeDataLog}
 * @param reportsPending whether it has {@code pendingRecords}; most of its kind do not
 * @param waitsInPoll whether it waits for rows inside of its poll, so that it is always busy
 */
record ChangeDataSource(String log, boolean reportsPending, boolean waitsInPoll)
    implements Source<String, ChangeDataSource.Position, Long> {

  /** The next row to read: the only split, and its state. */
  record Position(long next) implements SourceSplit {
    @Override
    public String splitId() {
      return "log";
    }
  }

  @Override
  public Boundedness getBoundedness() {
    return Boundedness.CONTINUOUS_UNBOUNDED;
  }

  @Override
  public SourceReader<String, Position> createReader(SourceReaderContext context) {
    return new ChangeDataReader(context, this);
  }

  @Override
  public SplitEnumerator<Position, Long> createEnumerator(SplitEnumeratorContext<Position> context) {
    return new Enumerator(context, 0L);
  }

  @Override
  public SplitEnumerator<Position, Long> restoreEnumerator(
      SplitEnumeratorContext<Position> context, Long waiting) {
    return new Enumerator(context, waiting);
  }

  @Override
  public SimpleVersionedSerializer<Position> getSplitSerializer() {
    return new Numbers<>() {
      @Override
      long number(Position split) {
        return split.next();
      }

      @Override
      Position of(long number) {
        return new Position(number);
      }
    };
  }

  @Override
  public SimpleVersionedSerializer<Long> getEnumeratorCheckpointSerializer() {
    return new Numbers<>() {
      @Override
      long number(Long waiting) {
        return waiting;
      }

      @Override
      Long of(long number) {
        return number;
      }
    };
  }

  /** Gives the log to the first reader that asks. Its state is the position of a log without a reader, else -1. */
  private static final class Enumerator implements SplitEnumerator<Position, Long> {

    private final SplitEnumeratorContext<Position> context;
    private final Deque<Integer> asked = new ArrayDeque<>();
    private long waiting;

    Enumerator(SplitEnumeratorContext<Position> context, long waiting) {
      this.context = context;
      this.waiting = waiting;
    }

    @Override
    public void start() {}

    @Override
    public void handleSplitRequest(int subtask, String host) {
      asked.add(subtask);
      assign();
    }

    private void assign() {
      while (waiting >= 0 && !asked.isEmpty()) {
        int subtask = asked.poll();
        if (context.registeredReaders().containsKey(subtask)) {
          context.assignSplit(new Position(waiting), subtask);
          waiting = -1;
        }
      }
    }

    @Override
    public void addSplitsBack(List<Position> splits, int subtask) {
      waiting = splits.get(0).next();
      assign();
    }

    @Override
    public void addReader(int subtask) {}

    @Override
    public Long snapshotState(long checkpointId) {
      return waiting;
    }

    @Override
    public void close() {}
  }

  private abstract static class Numbers<T> implements SimpleVersionedSerializer<T> {

    abstract long number(T value);

    abstract T of(long number);

    @Override
    public int getVersion() {
      return 1;
    }

    @Override
    public byte[] serialize(T value) {
      return ByteBuffer.allocate(Long.BYTES).putLong(number(value)).array();
    }

    @Override
    public T deserialize(int version, byte[] bytes) {
      return of(ByteBuffer.wrap(bytes).getLong());
    }
  }
}
