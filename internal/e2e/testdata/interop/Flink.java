import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.CloseableIterator;

/**
 * Flink in one process reads a topic through its connectors for Kafka and Debezium's JSON, from the beginning to the
 * end that it has now, and prints the rows that are left when all changes are applied: columns with tabs between them.
 * Arguments: brokers, topic, columns of the table as SQL (the first is the key), further options as name=value.
 */
public class Flink {
  public static void main(String[] args) throws Exception {
    StringBuilder options = new StringBuilder();
    for (int i = 3; i < args.length; i++) {
      int at = args[i].indexOf('=');
      options.append(", '").append(args[i], 0, at).append("' = '").append(args[i].substring(at + 1)).append("'");
    }
    TableEnvironment env = TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().build());
    env.getConfig().set("parallelism.default", "1");
    env.executeSql("CREATE TABLE t (" + args[2] + ") WITH ('connector' = 'kafka', 'topic' = '" + args[1]
        + "', 'properties.bootstrap.servers' = '" + args[0] + "', 'properties.isolation.level' = 'read_committed'"
        + ", 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = 'debezium-json'" + options + ")");
    Map<String, String> rows = new TreeMap<>();
    int changes = 0;
    try (CloseableIterator<Row> all = env.executeSql("SELECT * FROM t").collect()) {
      while (all.hasNext()) {
        Row row = all.next();
        changes++;
        List<String> columns = new ArrayList<>();
        for (int i = 0; i < row.getArity(); i++) columns.add(String.valueOf(row.getField(i)));
        String text = String.join("\t", columns);
        if (row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER) {
          String before = rows.put(columns.get(0), text);
          if (before != null) throw new IllegalStateException(row.getKind() + " of a row that is there: " + before);
        } else if (!text.equals(rows.remove(columns.get(0)))) {
          throw new IllegalStateException(row.getKind() + " of a row that is not there: " + text);
        }
      }
    }
    for (String row : rows.values()) System.out.println("row\t" + row);
    System.out.println("done\t" + changes);
    System.exit(0);
  }
}
