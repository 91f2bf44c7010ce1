package dev.weir.sample;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ChangeDataLogTest {

  @TempDir Path folder;

  @Test
  void theEndFollowsFromTheRatesAndIsTheSameForEachReader() throws IOException {
    Path file = folder.resolve("log");
    Files.writeString(file, "1000;300\n3000;10\n");
    ChangeDataLog log = new ChangeDataLog(file);
    assertEquals(0, log.endAt(500));
    assertEquals(300, log.endAt(2000));
    assertEquals(600, log.endAt(3000));
    assertEquals(620, log.endAt(5000));
    assertEquals(620, new ChangeDataLog(file).endAt(5000));
  }

  @Test
  void aRateThatIsAddedCountsFromItsTime() throws IOException {
    Path file = folder.resolve("log");
    Files.writeString(file, "0;100\n");
    ChangeDataLog log = new ChangeDataLog(file);
    assertEquals(100, log.endAt(1000));
    Files.writeString(file, "1000;1000\n", StandardOpenOption.APPEND);
    assertEquals(1100, log.endAt(2000));
  }
}
