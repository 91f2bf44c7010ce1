package dev.weir.sample;

import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;

/** Record values as they are; the source stays cheap and the parsing is parse's. A null value is an empty line. */
final class Lines implements DeserializationSchema<byte[]> {

  private static final long serialVersionUID = 1L;
  private static final byte[] EMPTY = new byte[0];

  @Override
  public byte[] deserialize(byte[] message) {
    return message == null ? EMPTY : message;
  }

  @Override
  public boolean isEndOfStream(byte[] line) {
    return false;
  }

  @Override
  public TypeInformation<byte[]> getProducedType() {
    return PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;
  }
}
