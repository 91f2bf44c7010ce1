package dev.weir.sample;

/**
 * An order with what is known about its key.
 *
 * @param producedAtMillis the producer's clock, milliseconds since 1970
 * @param key the order's key
 * @param payloadBytes the payload's length
 * @param ordersSoFar orders of this key up to and including this one
 */
public record EnrichedOrder(long producedAtMillis, String key, int payloadBytes, long ordersSoFar) {}
