package dev.weir.sample;

import java.util.SplittableRandom;

/**
 * What the job remembers of a key.
 *
 * @param orders orders seen
 * @param content bytes that stand for a real profile; they make the state as large as it was asked to be
 */
public record Profile(long orders, byte[] content) {

  /** A new key's profile. Its content does not compress, so that checkpoints have the size the state has. */
  static Profile of(String key, int bytes) {
    byte[] content = new byte[bytes];
    new SplittableRandom(key.hashCode()).nextBytes(content);
    return new Profile(0, content);
  }

  Profile withOneMore() {
    return new Profile(orders + 1, content);
  }
}
