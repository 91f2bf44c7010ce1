package dev.weir.sample;

import java.nio.charset.StandardCharsets;
import java.util.Optional;

/**
 * One order as it was produced.
 *
 * @param producedAtMillis the producer's clock, milliseconds since 1970
 * @param key what the stream is partitioned by; without a semicolon
 * @param payload the rest of the line
 */
public record Order(long producedAtMillis, String key, byte[] payload) {

  private static final int LONGEST_TIMESTAMP = 16;

  /**
   * Reads {@code <produced_at_ms>;<key>;<payload>}.
   *
   * @return empty if the line has no such form: no positive timestamp, no key, or too few fields
   */
  public static Optional<Order> read(byte[] line) {
    int first = indexOf(line, 0);
    int second = first < 0 ? -1 : indexOf(line, first + 1);
    if (first < 1 || first > LONGEST_TIMESTAMP || second < first + 2) {
      return Optional.empty();
    }
    long producedAt = 0;
    for (int i = 0; i < first; i++) {
      int digit = line[i] - '0';
      if (digit < 0 || digit > 9) {
        return Optional.empty();
      }
      producedAt = producedAt * 10 + digit;
    }
    if (producedAt == 0) {
      return Optional.empty();
    }
    String key = new String(line, first + 1, second - first - 1, StandardCharsets.UTF_8);
    byte[] payload = new byte[line.length - second - 1];
    System.arraycopy(line, second + 1, payload, 0, payload.length);
    return Optional.of(new Order(producedAt, key, payload));
  }

  private static int indexOf(byte[] line, int from) {
    for (int i = from; i < line.length; i++) {
      if (line[i] == ';') {
        return i;
      }
    }
    return -1;
  }
}
