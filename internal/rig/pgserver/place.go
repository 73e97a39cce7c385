package pgserver

import (
	"fmt"
	"io"
)

// Place is a directory for a server of another kind, next to those of
// PostgreSQL: it is removed with it, or by the next process of the rig if this
// one dies.
type Place struct{ home *home }

// NewPlace makes a directory whose name contains name. A server that runs in it
// must end with the process that started it.
func NewPlace(name string) (*Place, error) {
	acc, err := findAccount()
	if err != nil {
		return nil, err
	}
	if err := makeDirs(acc); err != nil {
		return nil, err
	}
	if err := sweepOnce(); err != nil {
		return nil, fmt.Errorf("remove what a dead process left: %w", err)
	}
	h, err := newHome(acc, name)
	if err != nil {
		return nil, err
	}
	return &Place{h}, nil
}

// Dir is the directory.
func (p *Place) Dir() string { return p.home.dir }

// Remove removes it.
func (p *Place) Remove() error { return p.home.remove() }

// TakePort reserves a port on 127.0.0.1 that nobody listens on, until the
// Closer is closed.
func TakePort() (int, io.Closer, error) { return takePort() }

// Lock takes a lock that all processes of the rig share.
func Lock(name string) (io.Closer, error) { return lock(name) }
