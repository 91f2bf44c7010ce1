package dev.weir.sample.streams;

/**
 * An order and its payment as they were read, before they are decoded.
 *
 * @param order null: the record had no value
 * @param payment null: the record had no value
 */
record PaidOrder(byte[] order, byte[] payment) {}
