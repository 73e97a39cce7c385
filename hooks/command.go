package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"time"
)

// passed are the variables that a command gets of those of the process: what
// programs need to run, and nothing that may be a secret.
var passed = []string{"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"}

// execute runs the command, without a shell: the event comes in variables and as
// JSON on standard input. Its output goes nowhere.
func (t *Teller) execute(ctx context.Context, e Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.opt.Command[0], t.opt.Command[1:]...) //nolint:gosec // the operator's own
	cmd.Env = environment(e)
	cmd.Stdin = bytes.NewReader(body)
	cmd.WaitDelay = time.Second // children of it may hold its pipes
	return cmd.Run()
}

func environment(e Event) []string {
	var env []string
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env,
		"MILLRACE_EVENT="+e.Event, "MILLRACE_JOB="+e.Job, "MILLRACE_AT="+e.At.UTC().Format(time.RFC3339Nano),
		"MILLRACE_HOST="+e.Host, "MILLRACE_INSTANCE="+e.Instance, "MILLRACE_STATE="+e.State, "MILLRACE_REASON="+e.Reason,
		"MILLRACE_HINT="+e.Hint, "MILLRACE_SEE="+e.See, "MILLRACE_ALARM="+e.Alarm, "MILLRACE_MESSAGE="+e.Message)
}
