package schema

import (
	"errors"
	"net/url"
	"strings"
)

// withoutPassword parts a connection string from its password, so that the rest
// can stand among the arguments of a program, which anybody on the machine can
// read.
func withoutPassword(conn string) (rest, password string, err error) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if body, ok := strings.CutPrefix(conn, scheme); ok {
			body, password, err = urlWithoutPassword(body)
			return scheme + body, password, err
		}
	}
	return keywordsWithoutPassword(conn)
}

// urlWithoutPassword takes what follows the scheme. The URL is not parsed as
// one, since several hosts with ports make no valid URL.
func urlWithoutPassword(body string) (rest, password string, err error) {
	if i := strings.IndexAny(body, "@/?"); i >= 0 && body[i] == '@' {
		user, secret, ok := strings.Cut(body[:i], ":")
		if ok {
			if password, err = url.PathUnescape(secret); err != nil {
				return "", "", errors.New("malformed percent-encoding in the password")
			}
			body = user + body[i:]
		}
	}
	path, query, ok := strings.Cut(body, "?")
	if !ok {
		return body, password, nil
	}
	var kept []string
	for param := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(param, "=")
		if name, err := url.PathUnescape(name); err != nil || name != "password" {
			kept = append(kept, param)
			continue
		}
		if password, err = url.PathUnescape(value); err != nil {
			return "", "", errors.New("malformed percent-encoding in the password")
		}
	}
	if len(kept) == 0 {
		return path, password, nil
	}
	return path + "?" + strings.Join(kept, "&"), password, nil
}

var errKeywords = errors.New("malformed connection string")

// keywordsWithoutPassword reads libpq's keyword = value form: values may stand
// in single quotes, and a backslash takes the next character as it is.
func keywordsWithoutPassword(conn string) (rest, password string, err error) {
	var kept []string
	s := strings.TrimSpace(conn)
	for s != "" {
		name, after, ok := strings.Cut(s, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return "", "", errKeywords
		}
		after = strings.TrimLeft(after, " \t\r\n\f\v")
		raw, value, err := keywordValue(after)
		if err != nil {
			return "", "", err
		}
		if name == "password" {
			password = value
		} else {
			kept = append(kept, name+"="+raw)
		}
		s = strings.TrimSpace(after[len(raw):])
	}
	return strings.Join(kept, " "), password, nil
}

// keywordValue gives the value at the start of s, as it is written and as it is
// meant.
func keywordValue(s string) (raw, value string, err error) {
	quoted := strings.HasPrefix(s, "'")
	i := 0
	if quoted {
		i = 1
	}
	var b strings.Builder
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'':
			return s[:i+1], b.String(), nil
		case !quoted && strings.IndexByte(" \t\r\n\f\v", c) >= 0:
			return s[:i], b.String(), nil
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", "", errKeywords
	}
	return s, b.String(), nil
}
