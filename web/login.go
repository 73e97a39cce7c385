package web

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// cookieName begins the name of the cookie of a browser that has shown the token; the
// job's name follows, since a cookie is for all ports of a host. It holds no token but
// a mark made with a key of this process: it is worth nothing after a restart, and
// nothing to another server.
const cookieName = "millrace_session_"

// gate decides who may look.
type gate struct {
	token  string // "" lets everybody in who reaches the address by name or number
	cookie string // its name
	mark   string // its value
}

func newGate(job, token string) *gate {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	m := hmac.New(sha256.New, key)
	m.Write([]byte(token))
	return &gate{token: token, cookie: cookieName + job, mark: hex.EncodeToString(m.Sum(nil))}
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// admits tells whether the request carries the token or the cookie.
func (g *gate) admits(r *http.Request) bool {
	if g.token == "" {
		return true
	}
	if given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return same(given, g.token)
	}
	c, err := r.Cookie(g.cookie)
	return err == nil && same(c.Value, g.mark)
}

// local tells whether a request without any token names the server as somebody
// on this machine would. A page from elsewhere whose name was made to point to
// loopback (DNS rebinding) names it otherwise.
func local(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// guard lets through who may look. A browser is asked for the token.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.gate.token == "" && !local(r):
			writeText(w, http.StatusMisdirectedRequest, "without http.token only localhost and addresses in numbers are answered")
		case s.gate.admits(r):
			next.ServeHTTP(w, r)
		case r.URL.Path == "/":
			s.askToken(w, http.StatusUnauthorized, "")
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="millrace"`)
			writeText(w, http.StatusUnauthorized, "a bearer token is needed (http.token)")
		}
	})
}

func (s *Server) askToken(w http.ResponseWriter, code int, problem string) {
	securityHeaders(w)
	w.Header().Set("WWW-Authenticate", `Bearer realm="millrace"`)
	w.WriteHeader(code)
	if err := pages.ExecuteTemplate(w, "login", map[string]string{"Job": s.opt.Job, "Problem": problem}); err != nil {
		s.opt.Log.Debug("write the login page", "cause", err)
	}
}

// login takes the token of a form and sets the cookie.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	if s.gate.token == "" {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	if !same(r.PostFormValue("token"), s.gate.token) {
		s.askToken(w, http.StatusUnauthorized, "That is not the token of this job.")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: s.gate.cookie, Value: s.gate.mark, Path: "/", HttpOnly: true,
		Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
