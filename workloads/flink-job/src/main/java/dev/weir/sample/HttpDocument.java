package dev.weir.sample;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;

/**
 * Reads a small document over HTTP.
 *
 * <p>{@link HttpURLConnection} and not java.net.http, whose own threads would keep the class loader of every past attempt
 * of a Flink job alive for a while, which a job that is rescaled every minute notices.
 */
public final class HttpDocument {

  private static final int TIMEOUT_MILLIS = 1000;
  private static final int MAX_BYTES = 64 * 1024;

  private HttpDocument() {}

  /**
   * Return the body of a GET.
   *
   * @throws IOException if there is no response with status 200 and at most 64 KiB
   */
  public static byte[] get(URI url) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) url.toURL().openConnection();
    connection.setConnectTimeout(TIMEOUT_MILLIS);
    connection.setReadTimeout(TIMEOUT_MILLIS);
    connection.setUseCaches(false);
    connection.setInstanceFollowRedirects(false);
    try (InputStream body = connection.getInputStream()) {
      if (connection.getResponseCode() != HttpURLConnection.HTTP_OK) {
        throw new IOException("HTTP " + connection.getResponseCode());
      }
      byte[] document = body.readNBytes(MAX_BYTES + 1);
      if (document.length > MAX_BYTES) {
        throw new IOException("more than " + MAX_BYTES + " bytes");
      }
      return document;
    } finally {
      connection.disconnect();
    }
  }
}
