package schema

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// An archive is what pg_dump --format=custom writes; of a schema-only dump all
// there is is the table of contents. It is read here, and not turned into a
// script by pg_restore, for two reasons: each definition comes with the catalog
// OID of its object and the entries that it depends on, and no name or function
// body can be taken for a statement of the dump itself.
//
// The format is that of ReadHead and ReadToc in PostgreSQL's
// src/bin/pg_dump/pg_backup_archiver.c. It has changed with major versions only
// and says its version first.
type archive struct {
	version archiveVersion
	entries []entry
}

// entry is one object of the archive.
type entry struct {
	id        int
	class     uint32 // pg_class OID of the catalog that the object stands in; 0: none of its own
	oid       uint32
	tag       string // the name as a comment has it
	desc      string // TABLE, TYPE, FK CONSTRAINT …
	section   section
	defn      string // statements that create it
	namespace string
	deps      []int

	partitioned bool // belongs to a partitioned table; not in the archive
}

// section says when in a restore an entry's turn comes.
type section int

const (
	sectionNone section = iota + 1
	sectionPreData
	sectionData
	sectionPostData
)

type archiveVersion struct{ major, minor byte }

func (v archiveVersion) atLeast(minor byte) bool { return v.minor >= minor }

// The versions that the dumps of PostgreSQL 15 to 18 have.
const (
	oldestArchive = 14
	newestArchive = 16
)

const customFormat = 1

// The limits stop a file that is no archive.
const (
	maxString  = 1 << 30
	maxEntries = 100_000_000
)

var errArchive = errors.New("not an archive of pg_dump --format=custom")

func readArchive(r io.Reader) (*archive, error) {
	d := &decoder{r: bufio.NewReaderSize(r, 1<<16)}
	a := &archive{}
	if err := d.head(a); err != nil {
		return nil, err
	}
	n := d.int()
	if d.err == nil && (n < 0 || n > maxEntries) {
		return nil, errArchive
	}
	for range n {
		e := d.entry(a.version)
		if d.err != nil {
			break
		}
		a.entries = append(a.entries, e)
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: %w", errArchive, d.err)
	}
	return a, nil
}

// head reads what stands before the number of entries.
func (d *decoder) head(a *archive) error {
	magic := make([]byte, 5)
	for i := range magic {
		magic[i] = d.byte()
	}
	if d.err != nil || string(magic) != "PGDMP" {
		return errArchive
	}
	a.version = archiveVersion{major: d.byte(), minor: d.byte()}
	d.byte() // revision
	if d.err == nil && (a.version.major != 1 || a.version.minor < oldestArchive || a.version.minor > newestArchive) {
		return fmt.Errorf("archive version 1.%d of this pg_dump is not known", a.version.minor)
	}
	d.intSize, d.offSize = int(d.byte()), int(d.byte())
	if format := d.byte(); d.err == nil && (format != customFormat || d.intSize < 1 || d.intSize > 8 || d.offSize > 16) {
		return errArchive
	}
	if a.version.atLeast(15) {
		d.byte() // compression algorithm
	} else {
		d.int() // compression level
	}
	for range 7 { // seconds to is-dst of the time it was made
		d.int()
	}
	for range 3 { // database, version of the server, version of pg_dump
		d.string()
	}
	if d.err != nil {
		return fmt.Errorf("%w: %w", errArchive, d.err)
	}
	return nil
}

func (d *decoder) entry(v archiveVersion) entry {
	e := entry{id: d.int()}
	d.int() // whether it has data
	e.class, e.oid = d.oid(), d.oid()
	e.tag, e.desc = d.string(), d.string()
	e.section = section(d.int())
	e.defn = d.string()
	d.string() // DROP statement
	d.string() // COPY statement
	e.namespace = d.string()
	d.string() // tablespace
	d.string() // table access method
	if v.atLeast(16) {
		d.int() // relkind
	}
	d.string() // owner
	d.string() // WITH OIDS
	for d.err == nil {
		text, ok := d.nullString()
		if !ok {
			break
		}
		id, err := strconv.Atoi(text)
		if err != nil {
			d.fail(err)
		}
		e.deps = append(e.deps, id)
	}
	for range 1 + d.offSize { // state and position of the data
		d.byte()
	}
	return e
}

// decoder reads the archive's integers and strings; after an error it gives
// zero values, and err says what went wrong.
type decoder struct {
	r                *bufio.Reader
	intSize, offSize int
	err              error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) byte() byte {
	if d.err != nil {
		return 0
	}
	b, err := d.r.ReadByte()
	if err != nil {
		d.fail(err)
	}
	return b
}

// int reads a sign byte and the magnitude, least significant byte first.
func (d *decoder) int() int {
	negative := d.byte() != 0
	n := 0
	for i := range d.intSize {
		n |= int(d.byte()) << (8 * i)
	}
	if negative {
		return -n
	}
	return n
}

func (d *decoder) string() string {
	s, _ := d.nullString()
	return s
}

// nullString tells a string that is absent from an empty one.
func (d *decoder) nullString() (string, bool) {
	n := d.int()
	if d.err != nil || n < 0 {
		return "", false
	}
	if n > maxString {
		d.fail(errors.New("a string is too long"))
		return "", false
	}
	// The length is not to be trusted with memory before the bytes are there.
	var b strings.Builder
	if _, err := io.CopyN(&b, d.r, int64(n)); err != nil {
		d.fail(err)
		return "", false
	}
	return b.String(), true
}

func (d *decoder) oid() uint32 {
	text := d.string()
	if d.err != nil {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		d.fail(err)
	}
	return uint32(n)
}
