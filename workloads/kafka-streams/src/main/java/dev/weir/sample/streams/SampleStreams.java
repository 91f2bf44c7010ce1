package dev.weir.sample.streams;

import static org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;

import dev.weir.sample.ServiceTime;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One instance of the application. SIGTERM commits and ends it; a failed thread ends it with exit code 1. */
public final class SampleStreams {

  private static final Logger LOG = LoggerFactory.getLogger(SampleStreams.class);
  private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(8);
  private static final int FAILED = 1;
  private static final int WRONG_ARGUMENTS = 2;

  private SampleStreams() {}

  public static void main(String[] arguments) throws IOException, InterruptedException {
    Options options;
    Properties properties;
    try {
      options = new Options(arguments, System.getenv());
      properties = properties(options);
    } catch (IllegalArgumentException error) {
      System.err.println("kafka-streams: " + error.getMessage());
      System.exit(WRONG_ARGUMENTS);
      return;
    }
    run(options, properties);
  }

  private static void run(Options options, Properties properties) throws IOException, InterruptedException {
    Costs costs = new Costs(options.serviceTimeMicros, options.controlUrl);
    KafkaStreams streams = new KafkaStreams(OrderTopology.of(options, costs, ServiceTime::new), properties);
    CountDownLatch failed = new CountDownLatch(1);
    streams.setStateListener(
        (now, before) -> {
          LOG.info("{} -> {}", before, now);
          if (now == KafkaStreams.State.ERROR) {
            failed.countDown();
          }
        });
    streams.setUncaughtExceptionHandler(
        error -> {
          LOG.error("a thread failed", error);
          return SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(CLOSE_TIMEOUT), "close"));
    costs.start();
    if (options.port != null) {
      Readiness.serve(options.port, streams::state);
    }
    streams.start();
    failed.await();
    System.exit(FAILED);
  }

  static Properties properties(Options options) {
    Properties properties = new Properties();
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, options.applicationId);
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.bootstrapServers);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, options.threads);
    properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.commitIntervalMillis);
    properties.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, options.standbyReplicas);
    properties.put(StreamsConfig.WINDOW_STORE_CHANGE_LOG_ADDITIONAL_RETENTION_MS_CONFIG, 60_000);
    properties.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, BoundedRocks.class);
    properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    properties.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, options.sessionTimeoutMillis);
    properties.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, Math.min(3000, options.sessionTimeoutMillis / 3));
    properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    if (options.clientId != null) {
      properties.put(StreamsConfig.CLIENT_ID_CONFIG, options.clientId);
    }
    if (options.stateFolder != null) {
      properties.put(StreamsConfig.STATE_DIR_CONFIG, options.stateFolder.toString());
    }
    if (options.properties != null) {
      try (Reader file = Files.newBufferedReader(options.properties)) {
        properties.load(file);
      } catch (IOException error) {
        throw Options.wrong("properties", "cannot read " + options.properties + ": " + error);
      }
    }
    return properties;
  }
}
