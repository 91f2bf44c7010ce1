package dev.weir.sample;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class OptionsTest {

  /** Only the broker has to be named. */
  @Test
  void defaultsFitTheTrial() {
    Options options = Options.of("--bootstrap-servers", "127.0.0.1:9092");
    assertEquals("orders", options.inputTopic);
    assertEquals("orders", options.groupId);
    assertEquals(120, options.maxParallelism);
    assertEquals(new Cost(1000, 0, null), options.costOf("enrich"));
    assertNull(options.parallelismOf("enrich"));
    assertNull(options.controlUrl);
  }

  @Test
  void operatorsAreSetOneByOne() {
    Options options =
        Options.of(
            "--bootstrap-servers", "b:1", "--parallelism", "orders=4,enrich=2", "--service-time-us", "sink=12.5",
            "--contention", "enrich=0.05", "--sink-limit-per-second", "900", "--control-url", "http://127.0.0.1:1/workload");
    assertEquals(4, options.parallelismOf("orders"));
    assertEquals(2, options.parallelismOf("enrich"));
    assertNull(options.parallelismOf("parse"));
    assertEquals(new Cost(12.5, 0, 900.0), options.costOf("sink"));
    assertEquals(new Cost(1000, 0.05, null), options.costOf("enrich"));
    assertEquals("127.0.0.1", options.controlUrl.getHost());
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "--windw-ms | 5 | --windw-ms: no such argument",
        "--window-ms | soon | --window-ms: not a number: soon",
        "--window-ms | 10.5 | --window-ms: not a whole number",
        "--bounded | maybe | --bounded: neither true nor false",
        "--max-parallelism | 0 | --max-parallelism: not from",
        "--parallelism | enrich | --parallelism: not operator=value: enrich",
        "--parallelism | enrich=121 | --parallelism: not from",
        "--service-time-us | orders=1 | --service-time-us: no such operator: orders",
        "--contention | enrich=-1 | --contention: not from",
        "--control-url | file:///etc/passwd | --control-url: not an http URL",
      })
  void whatIsWrongIsNamed(String name, String value, String said) {
    IllegalArgumentException refused =
        assertThrows(
            IllegalArgumentException.class, () -> Options.of("--bootstrap-servers", "b:1", name, value));
    assertTrue(refused.getMessage().startsWith(said), refused.getMessage());
  }

  @Test
  void theBrokerHasToBeNamed() {
    assertEquals(
        "--bootstrap-servers: has no value",
        assertThrows(IllegalArgumentException.class, Options::of).getMessage());
  }
}
