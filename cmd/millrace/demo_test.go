package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig"
)

var dashboard = regexp.MustCompile(`(?m)^dashboard: (http://127\.0\.0\.1:\d+/)$`)

// TestDemoKafka: the shop goes through Kafka, and both sides are equal at the end.
func TestDemoKafka(t *testing.T) {
	if len(demoServers()) == 0 || !rig.HaveKafka() {
		t.Skip("no PostgreSQL binaries, or no Kafka: make rig fetches them")
	}
	var out syncBuffer
	d := demo{app: &app{stdout: io.Discard, stderr: &out}, rate: 50, throughKafka: true}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	rig.Eventually(t, 3*time.Minute, func() bool { return strings.Contains(out.String(), "from Kafka: streaming · ") }, "the copy streams")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"dashboard into Kafka: http://", "dashboard from Kafka: http://", "source and target are equal: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q:\n%s", want, out.String())
		}
	}
}

// TestDemo: the first thing that people try. It names a dashboard that answers,
// streams, and finds both sides equal at its end.
func TestDemo(t *testing.T) {
	if len(demoServers()) == 0 {
		t.Skip("no PostgreSQL binaries: make rig fetches them")
	}
	var out syncBuffer
	d := demo{app: &app{stdout: io.Discard, stderr: &out}, rate: 50}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	rig.Eventually(t, 2*time.Minute, func() bool { return strings.Contains(out.String(), "streaming · ") }, "the demo streams")
	m := dashboard.FindStringSubmatch(out.String())
	if m == nil {
		t.Fatalf("no address of the dashboard:\n%s", out.String())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(page), "public.order_items") {
		t.Errorf("the dashboard: %s %v", res.Status, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "source and target are equal: ") {
		t.Errorf("not compared:\n%s", out.String())
	}
}
