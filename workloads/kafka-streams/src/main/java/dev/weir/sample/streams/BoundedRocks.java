package dev.weir.sample.streams;

import java.util.Map;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.Cache;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.WriteBufferManager;

/** Bounds the memory of all state stores of this process together; by default each store takes up to 100 MB. */
public final class BoundedRocks implements RocksDBConfigSetter {

  private static final long CACHE_BYTES = 32L * 1024 * 1024;
  private static final long WRITE_BUFFERS_BYTES = 16L * 1024 * 1024;
  private static final long WRITE_BUFFER_BYTES = 1024 * 1024;

  static {
    org.rocksdb.RocksDB.loadLibrary();
  }

  private static final Cache CACHE = new LRUCache(CACHE_BYTES);
  private static final WriteBufferManager BUFFERS = new WriteBufferManager(WRITE_BUFFERS_BYTES, CACHE);

  @Override
  public void setConfig(String store, Options options, Map<String, Object> configs) {
    BlockBasedTableConfig table = (BlockBasedTableConfig) options.tableFormatConfig();
    table.setBlockCache(CACHE);
    table.setCacheIndexAndFilterBlocks(true);
    options.setTableFormatConfig(table);
    options.setWriteBufferManager(BUFFERS);
    options.setWriteBufferSize(WRITE_BUFFER_BYTES);
    options.setMaxWriteBufferNumber(2);
  }

  @Override
  public void close(String store, Options options) {
    // Cache and buffers are shared by all stores and live as long as the process.
  }
}
