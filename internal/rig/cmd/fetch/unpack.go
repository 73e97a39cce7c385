package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// unpackWheel puts the tree of the one .tar.gz inside the wheel at dest.
func unpackWheel(wheel, dest string) (err error) {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, z.Close()) }()
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".tar.gz") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		gz, err := gzip.NewReader(r)
		if err != nil {
			return errors.Join(err, r.Close())
		}
		return errors.Join(untar(tar.NewReader(gz), dest, below), r.Close())
	}
	return errors.New("no .tar.gz in it")
}

// below is a name without its first directory, which names the version.
func below(name string) string {
	_, rest, _ := strings.Cut(name, "/")
	return rest
}

// untar puts what is in an archive at dest, under other names; nothing where the name is empty.
func untar(t *tar.Reader, dest string, rename func(string) string) error {
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := rename(strings.TrimPrefix(path.Clean(h.Name), "/"))
		if name == "" {
			continue
		}
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%q points outside the archive", h.Name)
		}
		if err := unpackEntry(t, h, dest, name, rename); err != nil {
			return err
		}
	}
}

func unpackEntry(t *tar.Reader, h *tar.Header, dest, name string, rename func(string) string) error {
	at := filepath.Join(dest, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(at, 0o755)
	case tar.TypeSymlink:
		if !filepath.IsLocal(filepath.Join(filepath.Dir(name), h.Linkname)) {
			return fmt.Errorf("%q links to %q, outside the archive", h.Name, h.Linkname)
		}
		return os.Symlink(h.Linkname, at)
	case tar.TypeLink:
		to := rename(path.Clean(h.Linkname))
		if !filepath.IsLocal(to) {
			return fmt.Errorf("%q links to %q, outside the archive", h.Name, h.Linkname)
		}
		return os.Link(filepath.Join(dest, to), at)
	case tar.TypeReg:
		return unpackFile(t, at, h.FileInfo().Mode().Perm()|0o444)
	}
	return nil // nothing else is in there, and nothing else would be needed
}

func unpackFile(r io.Reader, at string, perm os.FileMode) (err error) {
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, r)
	return err
}
