package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSummary(t *testing.T) {
	for name, c := range map[string]struct {
		events, want string
		ok           bool
	}{
		"passes, subtests counted once": {
			events: `{"Action":"start","Package":"github.com/millrace/millrace/a"}
{"Action":"run","Package":"github.com/millrace/millrace/a","Test":"T"}
{"Action":"run","Package":"github.com/millrace/millrace/a","Test":"T/x"}
{"Action":"attr","Package":"github.com/millrace/millrace/a","Test":"T/x","Key":"seed","Value":"7"}
{"Action":"pass","Package":"github.com/millrace/millrace/a","Test":"T/x"}
{"Action":"pass","Package":"github.com/millrace/millrace/a","Test":"T","Elapsed":6.4}
{"Action":"pass","Package":"github.com/millrace/millrace/a","Elapsed":1.5}
`,
			want: `seed: a.T/x: 7
ok   a                               1.5s
longest tests: a.T 6s
took 3s, longest: a 2s
1 passed, 0 failed, 0 skipped
`,
			ok: true,
		},
		"a skip is named with its reason": {
			events: `{"Action":"start","Package":"github.com/millrace/millrace/a"}
{"Action":"run","Package":"github.com/millrace/millrace/a","Test":"T"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Test":"T","Output":"    a_test.go:7: no server: run make rig\n"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Test":"T","Output":"--- SKIP: T (0.00s)\n"}
{"Action":"skip","Package":"github.com/millrace/millrace/a","Test":"T"}
{"Action":"pass","Package":"github.com/millrace/millrace/a","Elapsed":0}
`,
			want: `ok   a                               0.0s
skipped: a.T: no server: run make rig
took 3s, longest: a 0s
0 passed, 0 failed, 1 skipped
`,
			ok: true,
		},
		"the output of a failed test is shown, and of no other": {
			events: `{"Action":"start","Package":"github.com/millrace/millrace/a"}
{"Action":"run","Package":"github.com/millrace/millrace/a","Test":"T"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Test":"T","Output":"    a_test.go:7: broken\n"}
{"Action":"run","Package":"github.com/millrace/millrace/a","Test":"U"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Test":"U","Output":"chatter\n"}
{"Action":"pass","Package":"github.com/millrace/millrace/a","Test":"U"}
{"Action":"fail","Package":"github.com/millrace/millrace/a","Test":"T"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Output":"FAIL\n"}
{"Action":"fail","Package":"github.com/millrace/millrace/a","Elapsed":0}
`,
			want: `    a_test.go:7: broken
FAIL
failed: a.T
took 3s, longest: a 0s
1 passed, 1 failed, 0 skipped
`,
		},
		"a package that does not build": {
			events: `{"ImportPath":"github.com/millrace/millrace/a","Action":"build-output","Output":"a/a.go:3: undefined: x\n"}
{"ImportPath":"github.com/millrace/millrace/a","Action":"build-fail"}
{"Action":"start","Package":"github.com/millrace/millrace/a"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Output":"FAIL a [build failed]\n"}
{"Action":"fail","Package":"github.com/millrace/millrace/a","Elapsed":0,"FailedBuild":"github.com/millrace/millrace/a"}
`,
			want: `a/a.go:3: undefined: x
FAIL a [build failed]
failed: a
took 3s, longest: a 0s
0 passed, 1 failed, 0 skipped
`,
		},
		"a panic": {
			events: `{"Action":"start","Package":"github.com/millrace/millrace/a"}
{"Action":"run","Package":"github.com/millrace/millrace/a","Test":"T"}
{"Action":"output","Package":"github.com/millrace/millrace/a","Test":"T","Output":"panic: boom\n"}
{"Action":"fail","Package":"github.com/millrace/millrace/a","Elapsed":0}
`,
			want: `panic: boom
failed: a.T
took 3s, longest: a 0s
0 passed, 1 failed, 0 skipped
`,
		},
		"a package that never ends": {
			events: `{"Action":"start","Package":"github.com/millrace/millrace/a"}
`,
			want: `a: did not end
failed: a
took 3s, longest: 
0 passed, 1 failed, 0 skipped
`,
		},
		"nothing at all": {
			want: `took 3s, longest: 
no test ran
0 passed, 1 failed, 0 skipped
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := newSummary(&out)
			if err := s.read(strings.NewReader(c.events)); err != nil {
				t.Fatal(err)
			}
			ok := s.finish(3 * time.Second)
			if d := cmp.Diff(c.want, out.String()); d != "" || ok != c.ok {
				t.Errorf("ok=%v\n%s", ok, d)
			}
		})
	}
}

func TestPasses(t *testing.T) {
	raced, args := cutRace([]string{"-race", ".,relay", "-count=1", "./..."})
	got := passes(raced, args)
	want := []pass{
		{flags: []string{"-race", "-count=1"}, packages: []string{"./.", "./relay"}},
		{flags: []string{"-count=1"}, packages: []string{"./..."}, without: []string{modulePath, modulePath + "/relay"}},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(pass{})); d != "" {
		t.Error(d)
	}
}
