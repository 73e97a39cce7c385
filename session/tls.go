package session

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TLSPolicy is the rule of the configuration's section safety.
type TLSPolicy struct {
	// Require demands a verified server certificate from every host but
	// loopback and Unix sockets.
	Require bool
	// InsecureSkipVerify accepts any certificate, on loopback only.
	InsecureSkipVerify bool
}

const tlsHint = "use sslmode=verify-full with sslrootcert=FILE (or the system's certificates); " +
	"safety.require_tls: false gives up protection of the data in transit"

// apply refuses what the policy forbids and sets the defaults that differ from
// libpq's. conn is the string that cfg was parsed from.
func (p TLSPolicy) apply(conn string, cfg *pgx.ConnConfig) error {
	if p.Require && !namesSSLMode(conn) {
		if err := verifyRemoteHosts(conn, cfg); err != nil {
			return err
		}
	}
	hosts := hostsOf(cfg)
	if p.InsecureSkipVerify {
		for _, h := range hosts {
			if !isLoopback(h.Host) {
				return fmt.Errorf("insecure_skip_tls_verify is for loopback only, not for %s", h.Host)
			}
			if h.TLSConfig != nil {
				h.TLSConfig.InsecureSkipVerify = true
				h.TLSConfig.VerifyPeerCertificate = nil
			}
		}
		return nil
	}
	if !p.Require {
		return nil
	}
	for _, h := range hosts {
		if !isLoopback(h.Host) && !verifies(h.TLSConfig) {
			return fmt.Errorf("host %s: only sslmode=verify-full or verify-ca is accepted beyond loopback", h.Host)
		}
	}
	return nil
}

// verifyRemoteHosts makes verify-full the default of all hosts beyond
// loopback. What libpq would do instead, prefer, is no protection at all.
func verifyRemoteHosts(conn string, cfg *pgx.ConnConfig) error {
	if !slices.ContainsFunc(hostsOf(cfg), func(h *pgconn.FallbackConfig) bool { return !isLoopback(h.Host) }) {
		return nil
	}
	verified, err := parse(withVerifyFull(conn))
	if err != nil {
		return err
	}
	// The order of the hosts says which one is preferred, so it is the verified
	// list that is walked; loopback keeps the attempts of sslmode=prefer.
	var all []*pgconn.FallbackConfig
	for _, v := range hostsOf(verified) {
		if !isLoopback(v.Host) {
			all = append(all, v)
			continue
		}
		for _, h := range hostsOf(cfg) {
			if h.Host == v.Host && h.Port == v.Port {
				all = append(all, h)
			}
		}
	}
	cfg.Host, cfg.Port, cfg.TLSConfig = all[0].Host, all[0].Port, all[0].TLSConfig
	cfg.Fallbacks = all[1:]
	return nil
}

// hostsOf lists the connection attempts in their order. The TLS configurations
// are cfg's own.
func hostsOf(cfg *pgx.ConnConfig) []*pgconn.FallbackConfig {
	first := &pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}
	return append([]*pgconn.FallbackConfig{first}, cfg.Fallbacks...)
}

// namesSSLMode tells whether the string or the environment may have an sslmode
// of its own. Where this is wrong, as for a percent-encoded key or a service
// file, the host is verified all the same or the string is refused.
func namesSSLMode(conn string) bool {
	return strings.Contains(conn, "sslmode") || strings.Contains(conn, "ssl=") ||
		os.Getenv("PGSSLMODE") != ""
}

// withVerifyFull adds sslmode=verify-full to a string without sslmode.
func withVerifyFull(conn string) string {
	scheme, rest, isURL := strings.Cut(conn, "://")
	if !isURL || (scheme != "postgres" && scheme != "postgresql") {
		return "sslmode=verify-full " + conn
	}
	// A question mark may stand in the password, before the @.
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		rest = rest[i:]
	}
	if strings.Contains(rest, "?") {
		return conn + "&sslmode=verify-full"
	}
	return conn + "?sslmode=verify-full"
}

// verifies tells whether a connection with c proves that it speaks to a server
// whose certificate a trusted authority has signed. pgx implements verify-ca
// with InsecureSkipVerify and a check of its own.
func verifies(c *tls.Config) bool {
	return c != nil && (!c.InsecureSkipVerify || c.VerifyPeerCertificate != nil)
}

// isLoopback tells whether host cannot leave the machine: a Unix socket's
// directory, an abstract socket, localhost or a loopback address.
func isLoopback(host string) bool {
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
