// Package connector runs the connector as a data platform does and looks at what
// it writes: the messages, the states, and what an upserting reader makes of them.
package connector
