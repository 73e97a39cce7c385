package main

import (
	"context"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/session"
)

// walDir is where the server keeps its WAL, if it is on this machine and its role
// may know (pg_read_all_settings); "" if not. That an address is loopback does
// not prove the machine: a container's directory is looked for here in vain.
func walDir(ctx context.Context, conn *pgx.Conn) string {
	if !session.Loopback(conn) {
		return ""
	}
	var data string
	err := conn.QueryRow(ctx, "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'data_directory'").Scan(&data)
	if err != nil || data == "" {
		return "" // not for this role
	}
	// Only the server's own user sees whether this is a link to another disk.
	if wal := filepath.Join(data, "pg_wal"); freeSpace(wal) != nil {
		return wal
	}
	return data
}

// freeSpace is what can be written to a directory's disk, in bytes; nil if that
// can't be seen.
func freeSpace(dir string) *int64 {
	var st syscall.Statfs_t
	if dir == "" || syscall.Statfs(dir, &st) != nil {
		return nil
	}
	free := int64(st.Bavail) * int64(st.Bsize) //nolint:unconvert // not the same types everywhere
	return &free
}
