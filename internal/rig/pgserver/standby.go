package pgserver

import (
	"context"
	"path/filepath"
	"strings"
)

// baseBackup fills the data directory from a running primary, whose settings
// come along with it.
func (s *Server) baseBackup(primary *Server) error {
	slot := s.StandbySlot()
	err := s.acc.run(BinDir(s.major), "pg_basebackup", "-d", primary.URL(superuser), "-D", s.DataDir(),
		"-R", "-X", "stream", "-C", "-S", slot, "-c", "fast", "--no-sync")
	if err != nil {
		return err
	}
	return s.Configure("hot_standby=on", "hot_standby_feedback=on", "unix_socket_directories="+s.home.dir)
}

// StandbySlot names the physical slot of a standby at its primary.
func (s *Server) StandbySlot() string {
	return "standby_" + strings.ToLower(strings.NewReplacer("-", "_", ".", "_").Replace(filepath.Base(s.home.dir)))
}

// Promote makes a standby a primary and waits until it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	if err := s.acc.run(s.bin, "pg_ctl", "-D", s.DataDir(), "-s", "-w", "promote"); err != nil {
		return err
	}
	return ctx.Err()
}
