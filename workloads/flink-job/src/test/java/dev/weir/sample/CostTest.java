package dev.weir.sample;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class CostTest {

  /** capacity(p) = c·p / (1 + s·(p − 1)): 1,000/s alone; with s = 0.25 five subtasks do 2,500/s together. */
  @Test
  void contentionStretchesTheServiceTime() {
    Cost cost = new Cost(1000, 0.25, null);
    assertEquals(1_000_000, cost.nanosAt(1));
    assertEquals(2_000_000, cost.nanosAt(5));
  }

  /** 400/s shared: alone 2.5 ms a record, of two subtasks 5 ms each. A dearer service time counts instead. */
  @Test
  void aLimitIsShared() {
    assertEquals(2_500_000, new Cost(100, 0, 400.0).nanosAt(1));
    assertEquals(5_000_000, new Cost(100, 0, 400.0).nanosAt(2));
    assertEquals(9_000_000, new Cost(9000, 0, 400.0).nanosAt(2));
  }

  @ParameterizedTest
  @CsvSource({"-1, 0, 5", "NaN, 0, 5", "1, -0.1, 5", "1, NaN, 5", "1, 0, 0"})
  void impossibleCostsAreRefused(double micros, double contention, double limit) {
    assertThrows(IllegalArgumentException.class, () -> new Cost(micros, contention, limit));
  }

  /** What a document does not name stays as the job was started. */
  @Test
  void changesHoldWhatTheyName() throws IOException {
    CostChanges changes =
        CostChanges.read(
            "{\"operators\":{\"enrich\":{\"service_time_us\":200.5}},\"sink_limit_per_second\":900}".getBytes(UTF_8));
    Cost initial = new Cost(1000, 0.1, null);
    assertEquals(new Cost(200.5, 0.1, null), changes.appliedTo("enrich", initial));
    assertEquals(initial, changes.appliedTo("parse", initial));
    assertEquals(new Cost(1000, 0.1, 900.0), changes.appliedTo("sink", initial));
    assertEquals(initial, CostChanges.read("{}".getBytes(UTF_8)).appliedTo("sink", initial));
  }

  /** What cannot be used is refused with its field, so that the last costs stay. */
  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "[] | not a JSON object",
        "{\"operators\":[]} | operators: not an object",
        "{\"operators\":{\"join\":{}}} | operators.join: no such operator",
        "{\"operators\":{\"enrich\":5}} | operators.enrich: not an object",
        "{\"operators\":{\"enrich\":{\"service_time_us\":-1}}} | operators.enrich.service_time_us: not a number from 0.0",
        "{\"operators\":{\"enrich\":{\"service_time_us\":\"1\"}}} | operators.enrich.service_time_us: not a number",
        "{\"operators\":{\"enrich\":{\"speed\":1}}} | operators.enrich.speed: no such field",
        "{\"limit\":1} | limit: no such field",
        "{\"sink_limit_per_second\":0} | sink_limit_per_second: not a number from 0.1",
      })
  void nonsenseIsRefused(String document, String said) {
    IOException refused = assertThrows(IOException.class, () -> CostChanges.read(document.getBytes(UTF_8)));
    assertTrue(refused.getMessage().startsWith(said), refused.getMessage());
    assertThrows(IOException.class, () -> CostChanges.read("{\"operators\":".getBytes(UTF_8)));
  }
}
