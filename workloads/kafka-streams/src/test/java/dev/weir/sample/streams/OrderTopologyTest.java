package dev.weir.sample.streams;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.weir.sample.ServiceTime;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** On Kafka Streams' test driver, and a service time that takes a clock of the test's own. */
class OrderTopologyTest {

  private static final long T = 1_700_000_000_000L;

  private long sleptNanos;
  private Topology topology;
  private TopologyTestDriver driver;
  private TestInputTopic<String, byte[]> orders;
  private TestInputTopic<String, byte[]> payments;

  @BeforeEach
  void start(@TempDir Path folder) {
    String[] arguments = {
      "--bootstrap-servers", "127.0.0.1:1", "--state-dir", folder.toString(), "--service-time-us", "2000"
    };
    Options options = new Options(arguments, Map.of());
    Properties properties = SampleStreams.properties(options);
    topology =
        OrderTopology.of(
            options,
            new Costs(options.serviceTimeMicros, null),
            () -> new ServiceTime(() -> sleptNanos, nanos -> sleptNanos += nanos));
    driver = new TopologyTestDriver(topology, properties);
    orders = driver.createInputTopic("orders", new StringSerializer(), new ByteArraySerializer());
    payments = driver.createInputTopic("payments", new StringSerializer(), new ByteArraySerializer());
  }

  @AfterEach
  void stop() {
    driver.close();
  }

  private static byte[] line(long millis, String customer, String payload) {
    return (millis + ";" + customer + ";" + payload).getBytes(StandardCharsets.UTF_8);
  }

  private List<String> totals() {
    return driver
        .createOutputTopic("order-totals", new StringDeserializer(), new ByteArrayDeserializer())
        .readValuesToList()
        .stream()
        .map(value -> new String(value, StandardCharsets.UTF_8).replaceAll(";\\d+$", ""))
        .toList();
  }

  /** All of it is one subtopology: one task for each partition. */
  @Test
  void oneSubtopology() {
    assertEquals(1, topology.describe().subtopologies().size());
  }

  /** Two orders of a customer are totalled; the payment of another order does not pair with either. */
  @Test
  void ordersAreJoinedWithTheirPaymentsAndTotalled() {
    orders.pipeInput("anna#1", line(T, "anna", "12345"), T);
    payments.pipeInput("anna#1", line(T + 100, "anna", "ok"), T + 100);
    orders.pipeInput("anna#2", line(T + 200, "anna", "123"), T + 200);
    payments.pipeInput("anna#9", line(T + 300, "anna", "ok"), T + 300);
    payments.pipeInput("anna#2", line(T + 3200, "anna", "ok"), T + 3200);
    assertEquals(
        List.of("anna;1;7;" + T + ";" + (T + 100), "anna;2;12;" + (T + 200) + ";" + (T + 3200)), totals());
    assertEquals(new CustomerTotals(2, 12), driver.getKeyValueStore(Aggregate.STORE).get("anna"));
  }

  /** A payment more than three seconds after its order has no effect. */
  @Test
  void aLatePaymentIsNotJoined() {
    orders.pipeInput("anna#1", line(T, "anna", "12345"), T);
    payments.pipeInput("anna#1", line(T + 3001, "anna", "ok"), T + 3001);
    assertEquals(List.of(), totals());
  }

  /** A pair whose order or payment does not decode is dropped and counted, and takes no service time. */
  @Test
  void whatDoesNotDecodeIsCounted() {
    orders.pipeInput("anna#1", "no order".getBytes(StandardCharsets.UTF_8), T);
    payments.pipeInput("anna#1", line(T, "anna", "ok"), T);
    assertEquals(List.of(), totals());
    assertEquals(0, sleptNanos);
    double counted =
        driver.metrics().entrySet().stream()
            .filter(entry -> entry.getKey().name().equals("bad-records-total"))
            .mapToDouble(entry -> (double) entry.getValue().metricValue())
            .sum();
    assertEquals(1, counted);
  }

  /** Ten paid orders of 2 ms take 20 ms. */
  @Test
  void aPaidOrderTakesItsServiceTime() {
    for (int number = 0; number < 10; number++) {
      orders.pipeInput("anna#" + number, line(T, "anna", "x"), T);
      payments.pipeInput("anna#" + number, line(T, "anna", "ok"), T);
    }
    assertEquals(20_000_000, sleptNanos);
  }
}
