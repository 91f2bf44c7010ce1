package dev.weir.sample;

import java.nio.charset.StandardCharsets;

/**
 * What one key did in one window.
 *
 * @param key the orders' key
 * @param count orders in the window
 * @param payloadBytes sum of their payloads' lengths
 * @param oldestMillis the oldest produce timestamp among them: what freshness is judged by
 * @param newestMillis the newest produce timestamp among them
 * @param windowEndMillis end of the window, exclusive, by the job's clock
 */
public record Totals(
    String key, long count, long payloadBytes, long oldestMillis, long newestMillis, long windowEndMillis) {

  static Totals of(EnrichedOrder order, long windowEndMillis) {
    return new Totals(
        order.key(),
        1,
        order.payloadBytes(),
        order.producedAtMillis(),
        order.producedAtMillis(),
        windowEndMillis);
  }

  Totals plus(EnrichedOrder order) {
    return new Totals(
        key,
        count + 1,
        payloadBytes + order.payloadBytes(),
        Math.min(oldestMillis, order.producedAtMillis()),
        Math.max(newestMillis, order.producedAtMillis()),
        windowEndMillis);
  }

  /** {@code <key>;<count>;<payload_bytes>;<oldest_ms>;<newest_ms>;<window_end_ms>}. */
  byte[] line() {
    return (key + ';' + count + ';' + payloadBytes + ';' + oldestMillis + ';' + newestMillis + ';' + windowEndMillis)
        .getBytes(StandardCharsets.UTF_8);
  }
}
