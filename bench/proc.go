package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Without /proc, that is elsewhere than on Linux, there are times but no CPU and
// memory figures.

// tick is the unit of the times in /proc: USER_HZ is 100 on every Linux that
// Go runs on.
const tick = 10 * time.Millisecond

// procStat is what the bench needs of /proc/PID/stat.
type procStat struct {
	parent   int
	own      time.Duration // user and system
	children time.Duration // of children that have ended and were waited for
}

func readProcStat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The second field is the name in parentheses; it may hold spaces.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 15 {
		return procStat{}, fmt.Errorf("malformed /proc/%d/stat", pid)
	}
	num := func(i int) time.Duration {
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return time.Duration(n) * tick
	}
	parent, _ := strconv.Atoi(f[1])
	return procStat{parent: parent, own: num(11) + num(12), children: num(13) + num(14)}, nil
}

// cpuOf is the CPU time of one process, or 0 once it is gone.
func cpuOf(pid int) time.Duration {
	s, err := readProcStat(pid)
	if err != nil {
		return 0
	}
	return s.own
}

// cpuOfTree is the CPU time that a server and its backends ever used, also
// those that have ended: the postmaster waits for all of its children. It is
// read again if a child ended meanwhile, which would be counted twice or not at
// all.
func cpuOfTree(postmaster int) time.Duration {
	for {
		before, err := readProcStat(postmaster)
		if err != nil {
			return 0
		}
		sum := before.own + before.children
		for _, pid := range childrenOf(postmaster) {
			sum += cpuOf(pid)
		}
		if after, err := readProcStat(postmaster); err != nil || after.children == before.children {
			return sum
		}
	}
}

func childrenOf(pid int) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, d := range dirs {
		p, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if s, err := readProcStat(p); err == nil && s.parent == pid {
			pids = append(pids, p)
		}
	}
	return pids
}

// memoryOf reads one line of /proc/PID/status, such as VmHWM or RssAnon, in
// bytes. It is 0 once the process is gone.
func memoryOf(pid int, field string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if name != field {
			continue
		}
		kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		return kb << 10
	}
	return 0
}

// machineBusy is the time that all CPUs together were not idle, with the time
// stolen by the hypervisor.
func machineBusy() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, f := range strings.Fields(line)[1:] {
		n, _ := strconv.ParseInt(f, 10, 64)
		// user nice system idle iowait irq softirq steal; guest is in user.
		if i != 3 && i != 4 && i < 8 {
			busy += n
		}
	}
	return time.Duration(busy) * tick
}

// settle waits until the machine has been idle for a moment, at most limit.
func settle(ctx context.Context, limit time.Duration) error {
	const window = 200 * time.Millisecond
	for end := time.Now().Add(limit); time.Now().Before(end); {
		before := machineBusy()
		if err := pause(ctx, window); err != nil {
			return err
		}
		if machineBusy()-before <= window/5 {
			return nil
		}
	}
	return nil
}

// pause sleeps unless the run is over.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// describeMachine names the processor and what there is of it.
func describeMachine() machine {
	m := machine{CPU: "unknown"}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			switch strings.TrimSpace(name) {
			case "model name":
				m.CPU = strings.TrimSpace(value)
				m.Cores++
			}
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if f := strings.Fields(string(b)); len(f) > 1 {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			m.MemoryBytes = kb << 10
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel, _, _ = strings.Cut(strings.TrimSpace(string(b)), "-") // whose build it is does not matter
	}
	return m
}
