package kafkaserver

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// Version is the release that is fetched and run.
const Version = "4.4.0"

// Artifacts are what Maven fetches for it: the broker with the storage tool, and
// what prints its log, without which nobody sees why it does not start.
var Artifacts = []string{"org.apache.kafka:kafka_2.13:" + Version, "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5"}

// LibDir is the directory of the jars. It need not exist: see [Have].
func LibDir() string { return filepath.Join(pgserver.Dir(), "kafka", Version) }

// Have tells whether brokers can be started.
func Have() bool {
	if _, err := os.Stat(filepath.Join(LibDir(), "kafka_2.13-"+Version+".jar")); err != nil {
		return false
	}
	_, err := exec.LookPath("java")
	return err == nil
}

// jvm are small and start fast: the first compiler only, no parallel collector.
var jvm = []string{"-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxMetaspaceSize=160m",
	"-Xshare:auto", "-Djava.awt.headless=true"}

func java(jvm []string, main string, args ...string) *exec.Cmd {
	all := append(append([]string{}, jvm...), "-cp", LibDir()+"/*", "-Dlog4j2.configurationFile="+logConfig(), main)
	cmd := exec.Command("java", append(all, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C.UTF-8", "TZ=UTC"}
	return cmd
}

func logConfig() string { return filepath.Join(pgserver.Dir(), "template", "kafka-log4j2.properties") }

// readyLine is what a broker logs once it serves clients.
const readyLine = "Kafka Server started"

const logProperties = `rootLogger.level=WARN
rootLogger.appenderRef.o.ref=O
appender.o.type=Console
appender.o.target=SYSTEM_ERR
appender.o.name=O
appender.o.layout.type=PatternLayout
appender.o.layout.pattern=%d %p %c{1} %m%n
logger.s.name=kafka.server.KafkaRaftServer
logger.s.level=INFO
`

// template is a formatted data directory, made once: a JVM for it takes a
// second. What is different in each node is written when it is copied.
func template(scratch string) (string, error) {
	dir := filepath.Join(pgserver.Dir(), "template", "kafka-"+Version)
	l, err := pgserver.Lock("template-kafka")
	if err != nil {
		return "", err
	}
	defer l.Close()
	if _, err := os.Stat(filepath.Join(dir, metaFile)); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.WriteFile(logConfig(), []byte(logProperties), 0o644); err != nil {
		return "", err
	}
	unfinished := dir + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	props := filepath.Join(scratch, "format.properties")
	text := "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9\n" +
		"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9\ncontroller.listener.names=CONTROLLER\nlog.dirs=" + unfinished + "\n"
	if err := os.WriteFile(props, []byte(text), 0o644); err != nil {
		return "", err
	}
	if out, err := java(jvm, "kafka.tools.StorageTool", "format", "-t", newID(), "-c", props).CombinedOutput(); err != nil {
		return "", errors.New("format the storage: " + err.Error() + ": " + string(out))
	}
	return dir, os.Rename(unfinished, dir)
}

const metaFile = "meta.properties"

// cloneStorage makes the data directory of a node.
func cloneStorage(tmpl, dir, cluster, node string) error {
	if err := os.CopyFS(dir, os.DirFS(tmpl)); err != nil {
		return err
	}
	path := filepath.Join(dir, metaFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(string(b), "\n")
	for i, l := range lines {
		switch key, _, _ := strings.Cut(l, "="); key {
		case "node.id":
			lines[i] = "node.id=" + node
		case "cluster.id":
			lines[i] = "cluster.id=" + cluster
		case "directory.id":
			lines[i] = "directory.id=" + newID()
		}
	}
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644)
}
