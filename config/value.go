package config

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size int64

const (
	kib Size = 1 << 10
	mib Size = 1 << 20
	gib Size = 1 << 30
	tib Size = 1 << 40
)

var units = []struct {
	suffix string
	size   Size
}{{"KiB", kib}, {"MiB", mib}, {"GiB", gib}, {"TiB", tib}, {"B", 1}}

// ParseSize reads a whole number of bytes, KiB, MiB, GiB or TiB. MB and the
// like are refused, since half of the world takes them for 1024² and half for
// 1000².
func ParseSize(s string) (Size, error) {
	number, unit := s, Size(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			number, unit = strings.TrimSpace(n), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || number[0] == '+' {
		return 0, errors.New("want a size such as 64MiB (units B, KiB, MiB, GiB, TiB)")
	}
	if n > int64((1<<63-1)/unit) {
		return 0, errors.New("too large")
	}
	return Size(n) * unit, nil
}

// String gives the shortest form that ParseSize reads back.
func (s Size) String() string {
	for _, u := range []int{3, 2, 1, 0} {
		if unit := units[u]; s != 0 && s%unit.size == 0 {
			return strconv.FormatInt(int64(s/unit.size), 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// Secret is a value that must not be printed, such as a connection string. Its
// variables and files are read by Get, each time.
type Secret struct {
	raw     string
	literal bool
}

// Literal is a Secret without variables, such as one from a flag.
func Literal(s string) Secret { return Secret{raw: s, literal: true} }

// Template is a Secret in which ${VAR} and ${file:/path} stand for what is
// there when Get is called.
func Template(s string) Secret { return Secret{raw: s} }

// Empty tells whether the value was never set.
func (s Secret) Empty() bool { return s.raw == "" }

// Get gives the value.
func (s Secret) Get() (string, error) {
	if s.literal {
		return s.raw, nil
	}
	return expand(s.raw)
}

// String hides the value from logs.
func (s Secret) String() string {
	if s.Empty() {
		return ""
	}
	return "[hidden]"
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return "config.Secret{" + s.String() + "}" }

// expand replaces ${VAR} and ${file:/path}. $${ stands for ${. What is put in
// is not looked at again. Errors name variables and files, never their values.
func expand(s string) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, ok := strings.Cut(s[i+2:], "}")
		if !ok {
			return "", errors.New(`"${" without "}"; write $${ for a plain ${`)
		}
		value, err := lookUp(name)
		if err != nil {
			return "", err
		}
		b.WriteString(value)
		s = rest
	}
}

func lookUp(name string) (string, error) {
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		// Editors and secret stores end a file with a newline that is no part
		// of the secret.
		return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
	}
	if !isVariable(name) {
		return "", fmt.Errorf("${%s}: want ${VARIABLE} or ${file:/path}", name)
	}
	value, ok := os.LookupEnv(name)
	if !ok {
		return "", fmt.Errorf("environment variable %s is not set", name)
	}
	return value, nil
}

func isVariable(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
