package replication_test

import (
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
