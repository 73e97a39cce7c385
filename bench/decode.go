package main

import (
	"context"
	"errors"
)

// decodeMain is the contender "decode only".
func decodeMain(context.Context, []string) error {
	return errors.New("not built yet")
}
