package session

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) {
	code := rig.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
