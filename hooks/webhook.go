package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// CheckURL tells what is wrong with a webhook's URL. Beyond loopback it must be
// https unless TLS is not required. Its errors quote nothing of the URL, which
// may hold a secret.
func CheckURL(raw string, requireTLS bool) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("want https://host/path")
	case u.Scheme == "http" && requireTLS && !loopback(u.Hostname()):
		return errors.New("beyond loopback only https is accepted")
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// client follows no redirect: it would take the header to another place.
var client = &http.Client{
	Timeout:       within,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// post sends an event, again where that can help.
func (t *Teller) post(ctx context.Context, e Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		again, err := t.postOnce(ctx, body)
		if err == nil || !again || try == tries {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

func (t *Teller) postOnce(ctx context.Context, body []byte) (again bool, err error) {
	to, err := t.opt.URL()
	if err != nil {
		return true, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("the URL is not valid") // the original quotes it
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "millrace")
	if t.opt.Authorization != nil {
		value, err := t.opt.Authorization()
		if err != nil {
			return true, err
		}
		if value != "" {
			req.Header.Set("Authorization", value)
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return true, withoutURL(err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	if res.StatusCode/100 == 2 {
		return false, nil
	}
	again = res.StatusCode >= 500 || res.StatusCode == http.StatusRequestTimeout || res.StatusCode == http.StatusTooManyRequests
	return again, fmt.Errorf("the server answered %s", http.StatusText(res.StatusCode))
}

// withoutURL leaves out the URL, whose path or query may be a secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return errors.New("no such host")
	}
	return err
}
