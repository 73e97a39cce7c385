package pgserver

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// initdbArgs are the same for all clusters. C.UTF-8 is on every machine.
var initdbArgs = []string{"-U", superuser, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"}

// cloneCluster puts a fresh cluster at dir: a copy of one that initdb made once
// for this version, with a system identifier of its own.
func cloneCluster(acc *account, bin, dir string) error {
	tmpl, err := template(acc, bin)
	if err != nil {
		return err
	}
	// Copying in Go would lose owners and the speed of a reflink.
	if out, err := exec.Command("cp", "-a", "--reflink=auto", tmpl, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the template: %w: %s", err, out)
	}
	return newIdentity(dir)
}

// template gives the template cluster of the server with these programs and makes it if needed.
func template(acc *account, bin string) (string, error) {
	version, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("postgres --version: %w", err)
	}
	sum := sha256.Sum256([]byte(string(version) + strings.Join(initdbArgs, " ")))
	name := filepath.Base(filepath.Dir(bin)) + "-" + hex.EncodeToString(sum[:4])
	dir := filepath.Join(Dir(), "template", name)
	l, err := lock("template-" + name)
	if err != nil {
		return "", err
	}
	defer l.Close()
	if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	unfinished := dir + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	if err := acc.run(bin, "initdb", append([]string{"-D", unfinished}, initdbArgs...)...); err != nil {
		return "", err
	}
	return dir, os.Rename(unfinished, dir)
}

// newIdentity gives a copied cluster another system identifier: two servers
// with the same one would look like one server and its standby. The identifier
// stands in the control file, under a checksum, and in the first page header
// of each WAL segment (XLogLongPageHeaderData, access/xlog_internal.h).
func newIdentity(dir string) error {
	var id [8]byte
	binary.NativeEndian.PutUint64(id[:], rand.Uint64()>>1)
	err := edit(filepath.Join(dir, "global", "pg_control"), func(b []byte) error {
		end, err := controlLength(b)
		if err != nil {
			return err
		}
		copy(b, id[:])
		binary.NativeEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
		return nil
	})
	if err != nil {
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dir, "pg_wal", "0000*"))
	if err != nil {
		return err
	}
	for _, s := range segments {
		if err := patchSegment(s, id); err != nil {
			return err
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// controlLength finds where the control data ends and its CRC-32C stands. The
// structure differs between versions; the place where the checksum of all that
// comes before is right does not need to be known.
func controlLength(b []byte) (int, error) {
	for end := 200; end+4 <= len(b) && end < 512; end += 4 {
		if crc32.Checksum(b[:end], castagnoli) == binary.NativeEndian.Uint32(b[end:]) {
			return end, nil
		}
	}
	return 0, errors.New("pg_control has no checksum where one is expected")
}

// sysidOffset is where xlp_sysid stands: behind the short page header.
const sysidOffset = 24

func patchSegment(path string, id [8]byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(id[:], sysidOffset)
	return err
}

func edit(path string, change func([]byte) error) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := change(b); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}
