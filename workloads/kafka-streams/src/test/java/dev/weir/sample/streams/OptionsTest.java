package dev.weir.sample.streams;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class OptionsTest {

  /** An argument wins over the environment, which wins over the default. */
  @Test
  void argumentsEnvironmentAndDefaults() {
    Map<String, String> environment =
        Map.of("STREAMS_BOOTSTRAP_SERVERS", "kafka:9092", "STREAMS_THREADS", "4", "STREAMS_STATE_DIR", " ");
    Options options = new Options(new String[] {"--threads", "2"}, environment);
    assertEquals("kafka:9092", options.bootstrapServers);
    assertEquals(2, options.threads);
    assertEquals(1000, options.commitIntervalMillis);
    assertNull(options.stateFolder);
    assertNull(options.port);
  }

  @ParameterizedTest
  @CsvSource({
    "--threads,0,--threads: must lie between 1 and 64",
    "--threads,1.5,--threads: must be a whole number",
    "--service-time-us,NaN,--service-time-us: must lie between 0",
    "--commit-interval-ms,soon,--commit-interval-ms: must be a number",
    "--control-url,ftp://x,--control-url: must be an http URL",
    "--no-such,1,--no-such: unknown",
    "threads,1,threads: unknown",
  })
  void whatIsWrongIsNamed(String name, String value, String message) {
    String[] arguments = {"--bootstrap-servers", "kafka:9092", name, value};
    IllegalArgumentException error =
        assertThrows(IllegalArgumentException.class, () -> new Options(arguments, Map.of()));
    assertTrue(error.getMessage().startsWith(message), error.getMessage());
  }

  @Test
  void theBrokerIsRequired() {
    IllegalArgumentException error =
        assertThrows(IllegalArgumentException.class, () -> new Options(new String[0], Map.of()));
    assertEquals("--bootstrap-servers: has no value", error.getMessage());
  }
}
