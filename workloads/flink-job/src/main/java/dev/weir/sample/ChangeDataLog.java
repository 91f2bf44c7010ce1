package dev.weir.sample;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The log of changes of a table that does not exist: a file has the rates at which rows change, one {@code
 * <from_ms>;<rows_per_second>} a line, oldest first. How many rows changed until a time follows from it, so that a
 * reader that starts again finds the same log.
 */
final class ChangeDataLog {

  private static final long READ_AGAIN_MILLIS = 200;

  private record Rate(long fromMillis, double rowsPerSecond) {}

  private final Path file;
  private List<Rate> rates = List.of();
  private long readAtMillis = Long.MIN_VALUE;

  ChangeDataLog(Path file) {
    this.file = file;
  }

  /** Rows that changed until a time: the log's end. */
  long endAt(long nowMillis) throws IOException {
    if (nowMillis - READ_AGAIN_MILLIS >= readAtMillis) {
      rates = read(file);
      readAtMillis = nowMillis;
    }
    double rows = 0;
    for (int i = 0; i < rates.size(); i++) {
      long until = i + 1 < rates.size() ? Math.min(nowMillis, rates.get(i + 1).fromMillis()) : nowMillis;
      rows += Math.max(0, until - rates.get(i).fromMillis()) * rates.get(i).rowsPerSecond() / 1000;
    }
    return (long) rows;
  }

  private static List<Rate> read(Path file) throws IOException {
    List<Rate> rates = new ArrayList<>();
    for (String line : Files.readAllLines(file)) {
      String[] parts = line.split(";");
      rates.add(new Rate(Long.parseLong(parts[0].trim()), Double.parseDouble(parts[1].trim())));
    }
    return rates;
  }
}
