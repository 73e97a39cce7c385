package web

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// crowd is many clients that wait, each with a connection of its own and no
// goroutine.
type crowd []net.Conn

func gather(t *testing.T, base string, n int, query string) crowd {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || int(limit.Cur) < 2*n+200 {
		t.Skipf("%d clients in one process with their server need %d files, the limit is %d", n, 2*n+200, limit.Cur)
	}
	all := make(crowd, n)
	for i := range all {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		all[i] = c
		if _, err := fmt.Fprintf(c, "GET /wait?%s HTTP/1.1\r\nHost: localhost\r\n\r\n", query); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range all {
			c.Close()
		}
	})
	return all
}

// answers reads all answers and counts the codes.
func (c crowd) answers(t *testing.T) map[int]int {
	t.Helper()
	codes := make(map[int]int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for part := range 8 {
		wg.Go(func() {
			for i := part; i < len(c); i += 8 {
				_ = c[i].SetReadDeadline(time.Now().Add(time.Minute))
				res, err := http.ReadResponse(bufio.NewReader(c[i]), nil)
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				var a waitAnswer
				if err := json.NewDecoder(res.Body).Decode(&a); err != nil || a.Job != "shop" {
					t.Errorf("client %d: %v %+v", i, err, a)
				}
				res.Body.Close()
				mu.Lock()
				codes[res.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return codes
}

// usage is CPU time and goroutines of this process, which is server and clients.
func usage(t *testing.T) (cpu time.Duration, goroutines int, heap uint64) {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), runtime.NumGoroutine(), m.HeapInuse + m.StackInuse
}

// TestThousandsWait: 5,000 who wait cost no goroutine and next to no CPU and
// memory, and each gets its answer when its position has come.
func TestThousandsWait(t *testing.T) {
	const n = 5000
	j := start(t, nil)
	// Until the position that is asked for is there, the source is silent.
	base := serve(t, Options{Job: "shop", Progress: j.progress, WALSizes: func() (uint64, uint64) { return 8192, 16 << 20 }})
	_, before, heap := usage(t)
	here := j.progress.Waiting()
	waiting := gather(t, base, n, "lsn=0/2000200&timeout=2m")
	rig.Eventually(t, time.Minute, func() bool { return j.progress.Waiting() == here+n }, "all wait")
	rig.Eventually(t, time.Minute, func() bool {
		_, now, _ := usage(t)
		return now < before+100
	}, "those who wait have no goroutines")
	_, _, now := usage(t)
	if each := (int64(now) - int64(heap)) / n; each > 6<<10 { // server and client side
		t.Errorf("%d bytes for each who waits", each)
	}
	// The engine asks the source ten times a second, and the page's history is
	// kept; that must not grow with their number.
	cpu0, _, _ := usage(t)
	rig.Linger(t, 2*time.Second, "what waiting costs is measured")
	if j.progress.Waiting() != here+n {
		t.Error("somebody was answered early")
	}
	cpu, goroutines, _ := usage(t)
	t.Logf("%d wait: %d goroutines more, %d bytes each, %v of CPU in 2 s", n, goroutines-before, (int64(now)-int64(heap))/n, cpu-cpu0)
	if cpu-cpu0 > time.Second {
		t.Errorf("%v of CPU in 2 s of waiting", cpu-cpu0)
	}
	j.source.mu.Lock()
	j.source.position = 0x2000200
	j.source.mu.Unlock()
	if codes := waiting.answers(t); codes[http.StatusOK] != n {
		t.Errorf("answers %v", codes)
	}
	rig.Eventually(t, time.Minute, func() bool { return j.progress.Waiting() == here }, "nobody is left behind")
}

// TestParked: one that was parked gets the same answers as one that was not:
// timed out, ended with the run, refused once the history is known, by number;
// and one whose client has gone is given up.
func TestParked(t *testing.T) {
	t.Parallel()
	j := start(t, nil)
	base := serve(t, Options{Job: "shop", Progress: j.progress, WALSizes: func() (uint64, uint64) { return 8192, 16 << 20 }})
	parked := func(n int) {
		t.Helper()
		rig.Eventually(t, time.Minute, func() bool { return gauge(t, base, "millrace_waiting") == fmt.Sprint(n) }, fmt.Sprint(n, " wait"))
	}
	if codes := gather(t, base, 3, "lsn=FF/0&timeout=400ms").answers(t); codes[http.StatusRequestTimeout] != 3 {
		t.Errorf("timed out: %v", codes)
	}
	parked(0)
	for _, c := range gather(t, base, 3, "lsn=FF/0&timeout=4m") {
		parkedFirst(t, j, c)
	}
	parked(0) // within two sweeps
	numbers := gather(t, base, 2, "xid=4711&timeout=2m")
	rig.Linger(t, 2*parkAfter, "they are parked")
	j.source.send <- &millrace.Txn{XID: 4711, Commit: 0x2000300, End: 0x2000308, From: &j.source.from, Last: true}
	if codes := numbers.answers(t); codes[http.StatusOK] != 2 {
		t.Errorf("by number: %v", codes)
	}
	late := gather(t, base, 2, "lsn=77:3:3:0/10&timeout=2m") // a timeline that is still to come
	rig.Linger(t, 2*parkAfter, "they are parked")
	next := millrace.History{System: "77", Timeline: 3, Generation: 3}
	j.source.send <- &millrace.Txn{XID: 4712, Commit: 0x2000400, End: 0x2000408, From: &next, Last: true}
	if codes := late.answers(t); codes[http.StatusOK] != 2 {
		t.Errorf("of the next timeline: %v", codes)
	}
	ended := gather(t, base, 2, "lsn=FF/0&timeout=2m")
	parked(2)
	rig.Linger(t, 2*parkAfter, "they are parked")
	if err := j.stop(); err != nil {
		t.Error(err)
	}
	if codes := ended.answers(t); codes[http.StatusServiceUnavailable] != 2 {
		t.Errorf("at the end of the run: %v", codes)
	}
}

// parkedFirst hangs up once the wait is parked, after a check that the server
// does not close it by itself.
func parkedFirst(t *testing.T, j *job, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(2 * parkAfter))
	if _, err := io.ReadFull(c, make([]byte, 1)); !isTimeout(err) {
		t.Errorf("read while it waits: %v", err)
	}
	if j.progress.Waiting() == 0 {
		t.Error("nobody waits")
	}
	c.Close()
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// gauge reads one value of /metrics.
func gauge(t *testing.T, base, name string) string {
	t.Helper()
	_, body := get(t, http.DefaultClient, base+"/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name+"{") {
			return strings.TrimSpace(line[strings.LastIndexByte(line, ' '):])
		}
	}
	return ""
}
