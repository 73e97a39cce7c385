import io.debezium.connector.jdbc.JdbcSinkConnectorTask;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTaskContext;

/** Debezium's JDBC sink without a broker: lines "topic TAB key TAB value" in base64 on stdin, - for null. Arguments are its options. */
public class JdbcSink {
  static byte[] bytes(String s) { return s.equals("-") ? null : Base64.getDecoder().decode(s); }

  public static void main(String[] args) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (String s : args) {
      int i = s.indexOf('=');
      options.put(s.substring(0, i), s.substring(i + 1));
    }
    JsonConverter keys = new JsonConverter(), values = new JsonConverter();
    keys.configure(Map.of("schemas.enable", "true"), true);
    values.configure(Map.of("schemas.enable", "true"), false);
    List<SinkRecord> records = new ArrayList<>();
    Set<TopicPartition> partitions = new HashSet<>();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    long offset = 0;
    for (String line; (line = in.readLine()) != null; ) {
      String[] f = line.split("\t");
      SchemaAndValue k = keys.toConnectData(f[0], bytes(f[1])), v = values.toConnectData(f[0], bytes(f[2]));
      partitions.add(new TopicPartition(f[0], 0));
      records.add(new SinkRecord(f[0], 0, k.schema(), k.value(), v.schema(), v.value(), offset++));
    }
    InvocationHandler none = (proxy, method, a) -> switch (method.getName()) {
      case "configs" -> options;
      case "assignment" -> partitions;
      case "errantRecordReporter" -> null;
      case "hashCode" -> 1;
      case "toString" -> "context";
      default -> null;
    };
    JdbcSinkConnectorTask task = new JdbcSinkConnectorTask();
    task.initialize((SinkTaskContext) Proxy.newProxyInstance(JdbcSink.class.getClassLoader(), new Class<?>[] {SinkTaskContext.class}, none));
    task.start(options);
    task.open(partitions);
    for (SinkRecord r : records) task.put(List.of(r));
    task.put(List.of());
    task.stop();
    System.out.println("done " + records.size());
    System.exit(0);
  }
}
