package dev.weir.sample.streams;

import dev.weir.sample.Order;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/**
 * State of a customer: totals of all paid orders.
 *
 * @param orders number of paid orders
 * @param payloadBytes sum of the payloads' lengths of orders and payments
 */
record CustomerTotals(long orders, long payloadBytes) {

  static final CustomerTotals NONE = new CustomerTotals(0, 0);

  CustomerTotals plus(Order order, Order payment) {
    return new CustomerTotals(orders + 1, payloadBytes + order.payload().length + payment.payload().length);
  }

  /** Return {@code <customer>;<orders>;<payload_bytes>;<ordered_ms>;<paid_ms>;<now_ms>}. */
  byte[] line(Order order, Order payment, long nowMillis) {
    String times = order.producedAtMillis() + ";" + payment.producedAtMillis() + ";" + nowMillis;
    return (order.key() + ';' + orders + ';' + payloadBytes + ';' + times).getBytes(StandardCharsets.UTF_8);
  }

  /** Return a serde that adds {@code paddingBytes} to each value, so that the state has a size worth restoring. */
  static Serde<CustomerTotals> serde(int paddingBytes) {
    Deserializer<CustomerTotals> read =
        (topic, bytes) -> {
          if (bytes == null) {
            return null;
          }
          ByteBuffer buffer = ByteBuffer.wrap(bytes);
          return new CustomerTotals(buffer.getLong(), buffer.getLong());
        };
    return Serdes.serdeFrom(
        (topic, totals) ->
            totals == null
                ? null
                : ByteBuffer.allocate(2 * Long.BYTES + paddingBytes)
                    .putLong(totals.orders())
                    .putLong(totals.payloadBytes())
                    .array(),
        read);
  }
}
