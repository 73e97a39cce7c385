package connector

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig/child"
)

// live is a read that goes on until it is ended.
type live struct {
	proc     *child.Process
	stdin    io.WriteCloser
	messages chan message
}

func (p *platform) start(t *testing.T) *live {
	t.Helper()
	args := append([]string{"connector", "read", "--config", p.file(t, "config.json", p.config)}, p.readArgs(t)...)
	cmd := exec.Command(p.binary, args...)
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = in, out
	l := &live{stdin: stdin, messages: make(chan message, 1024)}
	l.proc, err = child.Start(cmd, syscall.SIGKILL)
	in.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.messages)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var m message
			if json.Unmarshal(lines.Bytes(), &m) == nil {
				l.messages <- m
			}
		}
	}()
	t.Cleanup(func() {
		stdin.Close()
		_ = l.proc.Signal(syscall.SIGKILL) // it may have ended
		<-l.proc.Done()
	})
	return l
}

// next gives the next message; false at the end of the output.
func (l *live) next(t *testing.T) (message, bool) {
	t.Helper()
	select {
	case m, ok := <-l.messages:
		return m, ok
	case <-time.After(patience):
		t.Fatal("no message comes")
	}
	return message{}, false
}

func (p *platform) flushed(t *testing.T) string {
	t.Helper()
	return p.source.Query(t, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+p.slot()+"'")
}

// TestAcknowledgements: in a continuous run the slot follows what is acknowledged,
// and nothing else.
func TestAcknowledgements(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, config{"mode": "continuous", "ack": "stdin"})
	before := p.flushed(t)
	l := p.start(t)
	r := p.reader()
	states := 0
	awaitOrder := func(id int) {
		for {
			m, ok := l.next(t)
			if !ok {
				t.Fatal("the connector ended")
			}
			r.take([]message{m})
			if m.Type == "STATE" {
				p.commit(m)
				if states++; r.has("orders", id) {
					return
				}
			}
		}
	}
	awaitOrder(500)
	p.source.SQL(t, "INSERT INTO orders VALUES (3000, 'x', 1)")
	awaitOrder(3000)
	if now := p.flushed(t); now != before {
		t.Errorf("the slot moved to %s without an acknowledgement", now)
	}
	at := p.source.Query(t, "SELECT pg_current_wal_flush_lsn()")
	for moved, id := false, 3001; !moved; id++ {
		p.source.SQL(t, fmt.Sprintf("INSERT INTO orders VALUES (%d, 'x', 1)", id))
		awaitOrder(id)
		if _, err := fmt.Fprintf(l.stdin, "{\"ack\":%d}\n", states); err != nil {
			t.Fatal(err)
		}
		moved = p.source.Query(t, "SELECT confirmed_flush_lsn >= '"+at+"' FROM pg_replication_slots WHERE slot_name = '"+p.slot()+"'") == "t"
		if id > 3200 {
			t.Fatal("the slot does not follow the acknowledgements")
		}
	}
	if err := l.proc.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-l.proc.Done()
	if code := l.proc.ExitCode(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	p.config["mode"], p.config["ack"] = "poll", "none"
	r.take(p.sync(t))
	p.equals(t, r)
}

// TestWrongAcknowledgement: what can't be true ends the run.
func TestWrongAcknowledgement(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, config{"mode": "continuous", "ack": "stdin"})
	l := p.start(t)
	if _, err := io.WriteString(l.stdin, "{\"ack\":1000000}\n"); err != nil {
		t.Fatal(err)
	}
	var all []message
	for {
		m, ok := l.next(t)
		if !ok {
			break
		}
		all = append(all, m)
	}
	<-l.proc.Done()
	if code := l.proc.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if got := failure(all); got[:12] != "config_error" {
		t.Errorf("the error is %q", got)
	}
}

// TestKilled: the connector is killed at any message, again and again, while rows
// are written. A reader that goes on from the last state has all of them.
func TestKilled(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, config{"mode": "continuous", "ack": "stdin"})
	r := p.reader()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kills := 6
	if os.Getenv("MILLRACE_SOAK") != "" {
		kills = 60
	}
	for kill := range kills {
		l := p.start(t)
		states, last := 0, 1+random.IntN(400)
		for i := range last {
			if i%20 == 0 {
				id := 10000 + 1000*kill + i
				p.source.SQL(t, fmt.Sprintf(`INSERT INTO orders VALUES (%d, 'k', 1); UPDATE orders SET total = total + 1 WHERE id %% 50 = %d;
					DELETE FROM items WHERE orders = %d; UPDATE items SET line = line + 10 WHERE orders = %d`, id, i%50, kill*20+i/20, 250+i/20))
			}
			m, ok := l.next(t)
			if !ok {
				t.Fatalf("the connector ended by itself with code %d", l.proc.ExitCode())
			}
			r.take([]message{m})
			if m.Type == "STATE" {
				states++
				p.commit(m)
				if random.IntN(2) == 0 {
					_, _ = fmt.Fprintf(l.stdin, "{\"ack\":%d}\n", states)
				}
			}
		}
		if err := l.proc.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-l.proc.Done()
	}
	p.config["mode"], p.config["ack"] = "poll", "none"
	r.take(p.sync(t))
	p.equals(t, r)
}

// has tells whether the reader has the row with this key.
func (r *reader) has(stream string, id int) bool {
	_, ok := r.rows[stream][fmt.Sprintf("%d|", id)]
	return ok
}
