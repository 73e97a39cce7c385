import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;

/**
 * Debezium's embedded engine, that writes each change of a slot as a line of JSON on
 * stdout and ends after so many. Arguments: host, port, database, slot, publication,
 * number of changes, file for the milliseconds from the start of the JVM to the first change.
 */
public class Engine {
  static long left;
  static boolean begun;

  public static void main(String[] a) throws Exception {
    Properties p = new Properties();
    p.put("name", "bench");
    p.put("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
    p.put("plugin.name", "pgoutput");
    p.put("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
    p.put("database.hostname", a[0]);
    p.put("database.port", a[1]);
    p.put("database.user", "postgres");
    p.put("database.password", "x");
    p.put("database.dbname", a[2]);
    p.put("topic.prefix", "bench");
    p.put("slot.name", a[3]);
    p.put("publication.name", a[4]);
    p.put("publication.autocreate.mode", "disabled");
    p.put("snapshot.mode", "no_data");
    p.put("tombstones.on.delete", "false");
    p.put("max.batch.size", "8192");
    p.put("max.queue.size", "32768");
    p.put("poll.interval.ms", "50");
    p.put("key.converter.schemas.enable", "false");
    p.put("value.converter.schemas.enable", "false");
    left = Long.parseLong(a[5]);
    BufferedOutputStream out = new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16);
    DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class).using(p)
        .using((ok, message, error) -> {
          if (error != null) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
          }
        })
        .notifying((List<ChangeEvent<String, String>> batch, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
          try {
            if (!begun) {
              begun = true;
              long ms = System.currentTimeMillis() - ManagementFactory.getRuntimeMXBean().getStartTime();
              Files.writeString(Path.of(a[6]), Long.toString(ms));
            }
            for (ChangeEvent<String, String> e : batch) {
              if (e.value() != null) {
                out.write(e.value().getBytes(StandardCharsets.UTF_8));
                out.write('\n');
                left--;
              }
              committer.markProcessed(e);
            }
            committer.markBatchFinished();
            if (left <= 0) {
              out.flush();
              Runtime.getRuntime().halt(0);
            }
          } catch (java.io.IOException e) {
            throw new RuntimeException(e);
          }
        }).build();
    engine.run();
  }
}
