import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.util.Properties;

/** Debezium's embedded engine: "topic TAB key TAB value" a line. Arguments are options of the connector: name=value. */
public class Debezium {
  public static void main(String[] args) throws Exception {
    Properties p = new Properties();
    p.put("name", "interop");
    p.put("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
    p.put("plugin.name", "pgoutput");
    p.put("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
    p.put("offset.flush.interval.ms", "0");
    p.put("converter.schemas.enable", "false");
    p.put("key.converter.schemas.enable", "false");
    p.put("value.converter.schemas.enable", "false");
    for (String s : args) {
      int i = s.indexOf('=');
      p.put(s.substring(0, i), s.substring(i + 1));
    }
    DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class).using(p)
        .using((ok, message, error) -> {
          System.err.println("ended: " + message);
          if (error != null) error.printStackTrace();
        })
        .notifying(r -> {
          System.out.println(r.destination() + "\t" + r.key() + "\t" + r.value());
          System.out.flush();
        }).build();
    engine.run();
  }
}
