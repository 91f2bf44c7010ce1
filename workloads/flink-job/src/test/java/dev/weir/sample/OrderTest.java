package dev.weir.sample;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class OrderTest {

  /** The payload may hold semicolons and may be empty; keys are UTF-8. */
  @Test
  void aLineIsAnOrder() {
    Order order = Order.read("1800000000123;käse;a;b".getBytes(UTF_8)).orElseThrow();
    assertEquals(1_800_000_000_123L, order.producedAtMillis());
    assertEquals("käse", order.key());
    assertEquals("a;b", new String(order.payload(), UTF_8));
    assertEquals(0, Order.read("1;k;".getBytes(UTF_8)).orElseThrow().payload().length);
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "", ";", ";;", "1;k", "1;;x", ";k;x", "0;k;x", "-1;k;x", "1.5;k;x", "soon;k;x", "99999999999999999;k;x"
      })
  void whatIsNoOrderIsNone(String line) {
    assertTrue(Order.read(line.getBytes(UTF_8)).isEmpty());
  }

  /** Totals keep the oldest and the newest produce time, in whatever order the orders come. */
  @Test
  void totalsAddUp() {
    Totals totals =
        Totals.of(new EnrichedOrder(500, "k", 10, 1), 2000)
            .plus(new EnrichedOrder(300, "k", 5, 2))
            .plus(new EnrichedOrder(700, "k", 1, 3));
    assertEquals("k;3;16;300;700;2000", new String(totals.line(), UTF_8));
  }
}
