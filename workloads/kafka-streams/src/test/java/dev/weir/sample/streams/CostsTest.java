package dev.weir.sample.streams;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class CostsTest {

  private static double read(String document) throws IOException {
    return new Costs(1000, null).read(document.getBytes(StandardCharsets.UTF_8));
  }

  /** A response without a service time restores the initial one. */
  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "{\"operators\":{\"aggregate\":{\"service_time_us\":250}}} | 250",
        "{\"operators\":{}} | 1000",
        "{\"operators\":{\"enrich\":{\"service_time_us\":5}}} | 1000",
      })
  void serviceTime(String document, double micros) throws IOException {
    assertEquals(micros, read(document));
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "[]", "{", "{\"operators\":{\"aggregate\":{\"service_time_us\":-1}}}",
      "{\"operators\":{\"aggregate\":{\"service_time_us\":\"fast\"}}}"})
  void anUnreadableResponseIsAnError(String document) {
    assertThrows(IOException.class, () -> read(document));
  }

  @Test
  void microsecondsBecomeNanoseconds() {
    assertEquals(1_500, new Costs(1.5, null).serviceNanos());
  }
}
