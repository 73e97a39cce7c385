//go:build !unix

package schema

func ownedByUs(string) bool { return false }
