package dev.weir.sample.streams;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.function.Supplier;
import org.apache.kafka.streams.KafkaStreams;

/** Serves {@code GET /ready} on the loopback interface: 200 while the instance is RUNNING, else 503, both with its state. */
final class Readiness {

  private final Supplier<KafkaStreams.State> state;

  private Readiness(Supplier<KafkaStreams.State> state) {
    this.state = state;
  }

  static void serve(int port, Supplier<KafkaStreams.State> state) throws IOException {
    InetSocketAddress address = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    HttpServer server = HttpServer.create(address, 8);
    server.createContext("/ready", new Readiness(state)::respond);
    server.start();
  }

  private void respond(HttpExchange exchange) throws IOException {
    try (exchange) {
      KafkaStreams.State now = state.get();
      byte[] body = ("{\"state\":\"" + now + "\"}").getBytes(StandardCharsets.UTF_8);
      exchange.getResponseHeaders().set("Content-Type", "application/json");
      exchange.sendResponseHeaders(now == KafkaStreams.State.RUNNING ? 200 : 503, body.length);
      exchange.getResponseBody().write(body);
    }
  }
}
