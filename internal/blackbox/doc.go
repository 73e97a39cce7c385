// Package blackbox drives the built program as its users do: by a configuration
// file, verbs, signals, exit codes and what it writes into the target. It knows
// nothing of the code.
package blackbox
