package airbyte

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// Key is what tells a table's rows apart for the platform, and the order in which
// the table is read.
type Key struct {
	Columns []string // none: there is no key
	// Chosen tells that the catalog or the configuration names it, and that it is
	// not the table's own.
	Chosen bool
	// Named tells that every change names its columns. Without that a table can
	// only be read whole; a key still makes that resumable.
	Named bool
}

// KeyOf finds the key of a table: the columns that were chosen for its stream, or
// those that the configuration has for it, or the table's own.
func (c *Config) KeyOf(t *catalog.Table, chosen []string) (Key, error) {
	own := ownKey(t)
	if len(chosen) == 0 {
		chosen = c.keys[t.Name]
	}
	if len(chosen) == 0 || sameColumns(chosen, own.Columns) {
		return own, nil
	}
	k := Key{Columns: chosen, Chosen: true}
	for _, name := range chosen {
		col := t.Column(name)
		switch {
		case col == nil:
			return k, keyError(t.Name, fmt.Errorf("there is no column %s", millrace.DisplayIdent(name)), "name columns of the table, as they are spelled there")
		case col.Generated != 0:
			return k, keyError(t.Name, fmt.Errorf("column %s is generated, and so is not in the stream", millrace.DisplayIdent(name)), "choose columns that are not")
		case !col.NotNull:
			return k, keyError(t.Name, fmt.Errorf("column %s can be null, and a row without a key can't be told from others", millrace.DisplayIdent(name)),
				fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL, or choose other columns", t.Name.SQL(), millrace.QuoteIdent(name)))
		}
	}
	k.Named = t.Carries(chosen)
	return k, nil
}

// CheckKeys finds what is wrong with the keys of the configuration, where these are
// the tables that are selected.
func (c *Config) CheckKeys(tables []*catalog.Table) error {
	if len(tables) == 0 {
		return nil // which is a problem of its own
	}
	var errs []error
	missing := maps.Clone(c.keys)
	for _, t := range tables {
		delete(missing, t.Name)
		_, err := c.KeyOf(t, nil)
		errs = append(errs, err)
	}
	for _, name := range slices.SortedFunc(maps.Keys(missing), func(a, b millrace.TableName) int { return strings.Compare(a.String(), b.String()) }) {
		errs = append(errs, keyError(name, errors.New("is not there, or not selected"), "correct its name under keys, or take it out there"))
	}
	return errors.Join(errs...)
}

// ownKey gives the columns that tell a table's rows apart by its definition:
// those that a delete is sure to name, or else the primary key.
func ownKey(t *catalog.Table) Key {
	if t.Identity == millrace.IdentityIndex {
		key := t.IdentityColumns()
		return Key{Columns: key, Named: len(key) > 0}
	}
	pk := t.PrimaryKey()
	if pk == nil {
		return Key{}
	}
	k := Key{Named: t.Identity != millrace.IdentityNothing && pk.Immediate}
	for _, n := range pk.Columns {
		col := t.ByNum(n)
		if col == nil || col.Generated != 0 { // which the stream does not send
			return Key{}
		}
		k.Columns = append(k.Columns, col.Name)
	}
	return k
}

// CanFollow refuses to follow the changes of a table whose rows they do not tell
// apart. Where they have whole rows and there is no key, they are a log.
func (k *Key) CanFollow(t *catalog.Table) error {
	full := "ALTER TABLE " + t.Name.SQL() + " REPLICA IDENTITY FULL"
	switch {
	case k.Named, k.Log(t):
		return nil
	case k.Chosen:
		return keyError(t.Name, fmt.Errorf("its changes do not name the key (%s)", strings.Join(k.Columns, ", ")),
			full+", or choose columns of its replica identity, or read it with full_refresh")
	}
	return keyError(t.Name, errors.New("has no key that its changes would name"),
		"give it a primary key or REPLICA IDENTITY USING INDEX; or "+full+"; or read it with full_refresh")
}

// Log tells whether the changes of a table can be followed though it has no key.
func (k *Key) Log(t *catalog.Table) bool {
	return len(k.Columns) == 0 && t.Identity == millrace.IdentityFull
}

func keyError(table millrace.TableName, err error, hint string) error {
	return &millrace.Error{Kind: millrace.KindConfig, Op: "key", Table: table, Err: err, Hint: hint}
}

func sameColumns(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func checkColumns(columns []string) error {
	if len(columns) == 0 {
		return fmt.Errorf("no columns")
	}
	for i, c := range columns {
		if c == "" || slices.Contains(columns[:i], c) {
			return fmt.Errorf("column %q is empty or there twice", c)
		}
	}
	return nil
}
