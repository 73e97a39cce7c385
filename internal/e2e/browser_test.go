package e2e

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/web"
)

// browser is a tab of a headless Chromium that notes all that is wrong.
type browser struct {
	context.Context
	t *testing.T

	mu       sync.Mutex
	problems []string
	loaded   []string // addresses
}

// newBrowser needs MILLRACE_BROWSER, the path of a Chromium; make interop sets it.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := os.Getenv("MILLRACE_BROWSER")
	if path == "" {
		t.Skip("no browser: make interop finds or installs Chromium and sets MILLRACE_BROWSER")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with it
	}
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(closeTab)
	b := &browser{Context: ctx, t: t}
	chromedp.ListenTarget(ctx, b.note)
	b.run("start", log.Enable(), network.Enable(), runtime.Enable()) //nolint:forbidigo // the browser's log
	return b
}

func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded: //nolint:forbidigo // the browser's log, where violations of the content policy are
		b.problems = append(b.problems, fmt.Sprint(e.Entry.Text, " ", e.Entry.URL)) //nolint:forbidigo // as above
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			b.problems = append(b.problems, fmt.Sprint(e.Type, " on the console"))
		}
	case *network.EventRequestWillBeSent:
		b.loaded = append(b.loaded, e.Request.URL)
	}
}

// run does actions within the test's patience.
func (b *browser) run(what string, actions ...chromedp.Action) {
	b.t.Helper()
	done := make(chan error, 1)
	go func() { done <- chromedp.Run(b.Context, actions...) }()
	select {
	case err := <-done:
		if err != nil {
			b.t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: not within %v", what, patience)
	}
}

// eval evaluates an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	var v T
	b.run(expression, chromedp.Evaluate(expression, &v))
	return v
}

// until waits for an expression to be true.
func (b *browser) until(expression, why string) {
	b.t.Helper()
	rig.Eventually(b.t, patience, func() bool { return eval[bool](b, expression) }, why)
}

// clean reports what went wrong so far, and what was loaded from elsewhere.
func (b *browser) clean(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Error(p)
	}
	for _, u := range b.loaded {
		if !strings.HasPrefix(u, origin) && !strings.HasPrefix(u, "data:") {
			b.t.Errorf("%s was loaded", u)
		}
	}
}

func (b *browser) scheme(name string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
}

const (
	// contrasts gives the texts whose contrast to their ground is below 4.5.
	contrasts = `(function () {
		function light(c) { var m = c.match(/[\d.]+/g).map(Number); return { a: m.length > 3 ? m[3] : 1, l: m.slice(0, 3)
			.map(function (v) { v /= 255; return v <= .03928 ? v / 12.92 : Math.pow((v + .055) / 1.055, 2.4); })
			.reduce(function (s, v, i) { return s + v * [.2126, .7152, .0722][i]; }, 0) }; }
		function ground(e) { for (; e; e = e.parentElement) { var c = light(getComputedStyle(e).backgroundColor); if (c.a > 0) return c.l; } return 1; }
		var poor = [];
		document.querySelectorAll("body *").forEach(function (e) {
			var own = Array.prototype.some.call(e.childNodes, function (n) { return n.nodeType === 3 && n.nodeValue.trim(); });
			if (!own || !e.offsetParent || ["PROGRESS", "METER"].indexOf(e.nodeName) >= 0) return;
			var a = light(getComputedStyle(e).color).l, g = ground(e), r = (Math.max(a, g) + .05) / (Math.min(a, g) + .05);
			if (r < 4.5) poor.push(e.nodeName + "." + e.className + " " + r.toFixed(2) + " " + e.textContent.trim().slice(0, 30));
		});
		return poor;
	})()`
	// unnamed gives controls and landmarks that have no name.
	unnamed = `Array.prototype.filter.call(document.querySelectorAll("section, button, input, [role=region]"), function (e) {
		var by = e.getAttribute("aria-labelledby");
		return !e.hidden && !(e.getAttribute("aria-label") || by && document.getElementById(by) || e.textContent.trim() && e.nodeName === "BUTTON" ||
			e.id && document.querySelector("label[for=" + e.id + "]"));
	}).map(function (e) { return e.outerHTML.slice(0, 80); })`
	headline = `document.querySelector("#s-verdict .headline").textContent`
)

// TestBrowser: the dashboard of a running job in a real browser: kept current
// without being loaded anew, in both themes, on a phone, by keyboard, without
// JavaScript, and honest when the process is gone.
func TestBrowser(t *testing.T) {
	b := newBrowser(t)
	p := running(t, plan{schema: "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)"})
	p.shown(t) // learns the address
	origin := "http://" + p.address[p.PID()] + "/"
	b.run("open", b.scheme("light"), chromedp.EmulateViewport(1200, 900), chromedp.Navigate(origin))
	b.until(`!document.getElementById("live").hidden`, "the page is live")
	b.until(`document.querySelectorAll("#charts canvas").length === 3`, "three charts are drawn")
	if s := eval[string](b, `document.querySelector("#s-top .badge").textContent`); s != "streaming" {
		t.Errorf("state %q", s)
	}

	p.source.SQL(t, "INSERT INTO t SELECT i, 0 FROM generate_series(2, 42) i")
	b.until(`document.querySelector("#s-tables tbody td:last-child").textContent === "41"`, "the changes are counted on the page")
	holder, pid := openSession(t, p.target, "SET application_name = 'a_report'", "BEGIN", "LOCK TABLE t IN SHARE MODE")
	p.source.SQL(t, "UPDATE t SET v = 1 WHERE id = 1")
	b.until(fmt.Sprintf(`/pid %d \(.*a_report/.test(document.querySelector("#s-verdict").textContent)`, pid), "the page names who holds the lock")
	b.until(`document.querySelector("#s-verdict .verdict").classList.contains("warn")`, "and warns")
	if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	b.until(headline+` === "Up to date" || `+headline+`.endsWith(" ms behind")`, "the lag is gone")

	ground := `getComputedStyle(document.body).backgroundColor`
	was := eval[string](b, ground)
	for _, theme := range []string{"light", "dark"} {
		b.run("theme", chromedp.Click("#theme"))
		b.until(`document.documentElement.dataset.theme === "`+theme+`"`, "theme "+theme)
		if poor := eval[[]string](b, contrasts); len(poor) > 0 {
			t.Errorf("%s: too little contrast: %q", theme, poor)
		}
	}
	if eval[string](b, ground) == was {
		t.Error("dark is as light as light")
	}
	b.run("again", chromedp.Reload())
	b.until(`document.documentElement.dataset.theme === "dark"`, "the theme stays")
	if list := eval[[]string](b, unnamed); len(list) > 0 {
		t.Errorf("without a name: %q", list)
	}
	b.run("keyboard", chromedp.KeyEvent(kb.Tab))
	if s := eval[string](b, `document.activeElement.className`); s != "skip" {
		t.Errorf("the first stop of the keyboard is %q", s)
	}

	b.run("phone", chromedp.EmulateViewport(375, 700), chromedp.Reload())
	b.until(`document.querySelectorAll("#charts canvas").length === 3`, "three charts on a phone")
	if w := eval[int](b, `document.documentElement.scrollWidth`); w > 375 {
		t.Errorf("%d pixels wide on a phone of 375", w)
	}

	b.run("without scripts", emulation.SetScriptExecutionDisabled(true), chromedp.Reload(), chromedp.WaitVisible(".headline"))
	var text string
	b.run("read", chromedp.Text("main", &text), emulation.SetScriptExecutionDisabled(false))
	wants(t, "the page without scripts", strings.ToLower(text), "source", "millrace_"+p.source.Name, "public.t", "state changed")

	b.run("live again", chromedp.Navigate(origin))
	b.until(`!document.getElementById("live").hidden`, "the page is live again")
	b.clean(origin)
	p.Kill(t)
	b.until(`!document.getElementById("lost").hidden && document.getElementById("live").hidden`, "the page says that its values are old")
}

// TestBrowserTables: where the operator has enabled it, tables are added, read again
// and dropped on the page, each but the first after a question.
func TestBrowserTables(t *testing.T) {
	b := newBrowser(t)
	p := newPair(t, plan{schema: `CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0);
		CREATE TABLE more (id int PRIMARY KEY); INSERT INTO more VALUES (1), (2)`, options: func(o *blackbox.Options, _ *pair) {
		o.Tables, o.HTTP = []string{"public.t"}, "actions: true"
	}})
	p.source.SQL(t, "DROP PUBLICATION "+p.slotName())
	p.Start(t, "--bootstrap", "--create-publication")
	p.sync(t)
	p.shown(t) // learns the address
	origin := "http://" + p.address[p.PID()] + "/"
	b.run("open", chromedp.EmulateViewport(1200, 900), chromedp.Navigate(origin), chromedp.WaitVisible("#add"))
	said := `document.getElementById("said").textContent`

	b.run("add what is not there", chromedp.SendKeys("#add-table", "public.nothing"+kb.Enter))
	b.until(said+`.includes("public.nothing")`, "the refusal is shown")
	b.run("add", chromedp.Evaluate(`document.getElementById("add-table").value = ""`, nil), chromedp.SendKeys("#add-table", "public.more"+kb.Enter))
	b.until(said+` === "public.more is loaded beside the stream"`, "the table is added")
	rig.Eventually(t, patience, func() bool {
		n, err := p.target.Server.TryQuery(p.target.Name, "SELECT count(*) FROM more")
		return err == nil && n == "2"
	}, "its rows are there")
	b.until(`document.querySelector('button[data-table="public.more"][data-action=drop]') !== null`, "the page has it")

	p.target.SQL(t, "SET session_replication_role = replica; UPDATE t SET v = 5")
	again := `button[data-table="public.t"][data-action=resnapshot]`
	b.run("ask", chromedp.Click(again), chromedp.WaitVisible("#ask"))
	for _, scheme := range []string{"light", "dark"} {
		b.run("scheme", b.scheme(scheme))
		if poor := eval[[]string](b, contrasts); len(poor) > 0 {
			t.Errorf("%s: too little contrast: %q", scheme, poor)
		}
	}
	b.run("no", chromedp.Click("#ask button[value='']"), chromedp.WaitNotVisible("#ask"))
	b.run("yes", chromedp.Click(again), chromedp.WaitVisible("#ask"), chromedp.Click("#ask-yes"))
	b.until(said+` === "public.t is read again"`, "the table is read again")
	rig.Eventually(t, patience, func() bool { return p.target.Query(t, "SELECT v FROM t") == "0" }, "its row is as at the source")

	b.run("drop", chromedp.Click(`button[data-table="public.more"][data-action=drop]`), chromedp.WaitVisible("#ask"), chromedp.Click("#ask-yes"))
	b.until(said+` === "public.more is no longer carried"`, "the table is dropped")
	b.until(`document.querySelector('button[data-table="public.more"]') === null`, "the page has it no more")
	b.until(`/tables were changed/.test(document.getElementById("s-past").textContent)`, "the events tell of it")
	if list := eval[[]string](b, unnamed); len(list) > 0 {
		t.Errorf("without a name: %q", list)
	}
	b.run("phone", chromedp.EmulateViewport(375, 700), chromedp.Reload(), chromedp.WaitVisible("#add"))
	b.until(`document.documentElement.scrollWidth <= 375`, "it fits on a phone")
}

// TestBrowserToken: a browser gets in with the token, and the stream with it.
func TestBrowserToken(t *testing.T) {
	b := newBrowser(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := web.New(web.Options{Job: "shop", Token: "open sesame", Progress: relay.NewProgress(),
		Status: func() *web.Status { return &web.Status{Job: "shop", State: "streaming"} }})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	origin := "http://" + l.Addr().String() + "/"
	b.run("open", chromedp.Navigate(origin), chromedp.WaitVisible("#token"))
	if list := eval[[]string](b, unnamed); len(list) > 0 {
		t.Errorf("without a name: %q", list)
	}
	b.run("wrong", chromedp.SendKeys("#token", "open barley"+kb.Enter), chromedp.WaitVisible("[role=alert]"))
	b.run("right", chromedp.SendKeys("#token", "open sesame"+kb.Enter), chromedp.WaitVisible(".headline"))
	b.until(`!document.getElementById("live").hidden`, "the page is live behind the token")
	if s := eval[string](b, `document.cookie`); s != "" {
		t.Errorf("scripts see the cookie: %q", s)
	}
}

// TestScreenshots takes the pictures of the documents of a running demo, into
// the folder MILLRACE_SCREENSHOTS; MILLRACE_DEMO is its address.
func TestScreenshots(t *testing.T) {
	dir, origin := os.Getenv("MILLRACE_SCREENSHOTS"), os.Getenv("MILLRACE_DEMO")
	if dir == "" || origin == "" {
		t.Skip("only when pictures are wanted: set MILLRACE_SCREENSHOTS and MILLRACE_DEMO")
	}
	b := newBrowser(t)
	for _, shot := range []struct {
		name, scheme  string
		width, height int64
		when          string
	}{
		{"light", "light", 1100, 0, `true`},
		{"dark", "dark", 1100, 0, `document.querySelector("#s-verdict").textContent.includes("nightly_report")`},
		{"phone", "dark", 375, 1500, `true`},
	} {
		var picture []byte
		b.run("open", b.scheme(shot.scheme), chromedp.EmulateViewport(shot.width, max(shot.height, 800)), chromedp.Navigate(origin))
		b.until(`document.querySelectorAll("#charts canvas").length === 3`, "three charts are drawn")
		rig.Eventually(t, 2*time.Minute, func() bool { return eval[bool](b, shot.when) }, shot.when)
		take := chromedp.FullScreenshot(&picture, 100)
		if shot.height > 0 {
			take = chromedp.CaptureScreenshot(&picture)
		}
		b.run("take", take)
		if err := os.WriteFile(filepath.Join(dir, "dashboard-"+shot.name+".png"), small(t, picture), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// small keeps the 64 most frequent colours of a picture: it shows flat areas and
// text.
func small(t *testing.T, picture []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[color.Color]int)
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			count[full.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	few := image.NewPaletted(full.Bounds(), colours[:min(64, len(colours))])
	draw.Draw(few, few.Bounds(), full, image.Point{}, draw.Src)
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
