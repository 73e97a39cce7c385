package blackbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Wait waits until the target holds what is committed at the source now, by the
// process's own /wait: that asks the source for its position, so that it answers
// soon on an idle one too. It gives up when the job says that it can't go on,
// when its process has ended, or after the timeout.
func (j *Job) Wait(timeout time.Duration) error {
	token, err := j.source.Server.TryQuery(j.source.Name, "SELECT pg_current_wal_insert_lsn()")
	if err != nil {
		return err
	}
	return j.WaitFor(token, timeout)
}

// WaitFor is Wait for a given token.
func (j *Job) WaitFor(token string, timeout time.Duration) error {
	var last error
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		if !j.Running() {
			return fmt.Errorf("the process has ended with code %d", j.ExitCode())
		}
		done, err := j.ask(token, min(time.Until(deadline), 20*time.Second))
		if done {
			return err
		}
		last = err
		select {
		case <-j.proc.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s not reached within %v: %w", token, timeout, last)
}

// ask asks once. Only an answer about the position is final: while the process
// starts and loads it may not listen yet.
func (j *Job) ask(token string, timeout time.Duration) (done bool, err error) {
	there, err := j.target.Server.TryQuery(j.target.Name, "SELECT to_regclass('millrace.runtime')")
	if err != nil || there == "" {
		return false, errors.Join(err, errors.New("there is no millrace.runtime yet"))
	}
	// Killed processes leave their rows behind.
	addr, err := j.target.Server.TryQuery(j.target.Name, fmt.Sprintf(
		"SELECT http FROM millrace.runtime WHERE job = '%s' AND pid = %d ORDER BY heartbeat_at DESC LIMIT 1", j.Name, j.PID()))
	if err != nil {
		return false, err
	}
	if addr == "" {
		return false, errors.New("no address of the process in millrace.runtime")
	}
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	q := url.Values{"lsn": {token}, "timeout": {fmt.Sprintf("%.0fs", max(1, timeout.Seconds()))}}
	ctx, cancel := context.WithTimeout(context.Background(), timeout+10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(addr, "/")+"/wait?"+q.Encode(), nil)
	if err != nil {
		return true, err
	}
	req.Header.Set("Authorization", "Bearer "+j.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return false, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusBadRequest, http.StatusConflict:
		return true, fmt.Errorf("/wait: %s: %s", resp.Status, body)
	}
	return false, fmt.Errorf("/wait: %s: %s", resp.Status, body)
}
