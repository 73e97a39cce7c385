package main

import (
	"regexp"
	"strings"
)

// connectorWords says what errors and hints of the packages below mean to whoever runs the
// connector, for whom there are neither the other verbs nor their configuration
// file. The longer of two that begin alike comes first.
var connectorWords = strings.NewReplacer(
	"run never creates a slot: `millrace bootstrap` does; if the slot was dropped, ", "with create_slot: true the next read makes it; if it was dropped, ",
	"run never creates a publication: `millrace bootstrap --create-publication` does; if ", "with create_slot: true the next read makes it; if ",
	"if millrace table add, or drop, was interrupted, run it again", "start the connector again",
	"start over with `millrace bootstrap --restart-snapshot --yes`", resetWords,
	"start over with snapshot.mode: consistent", "read its tables with full_refresh",
	"read the table again with millrace table resnapshot", clearWords,
	"read it again with millrace table resnapshot", clearWords,
	"take it out of the job with millrace table drop", "take its stream out of the catalog",
	"millrace check says what the key under keys lacks", "correct primary_key in the catalog, or keys: "+keyWords,
	"; or let millrace create it: --create-publication", "; or let the first read make it: create_slot: true",
	"safety.require_tls: false", "require_tls: false",
	"name tables with --table, or source.postgres.tables in the configuration", "name them with schemas and tables",
	"is larger than resources.max_message, ", "is larger than what is taken, ",
)

const (
	resetWords = "reset the connection: clear its data and its state, so that its streams are read again"
	clearWords = "clear the stream's data and its state at the platform, so that it is read again"
	keyWords   = "its columns are never null, and every change has to name them, as with REPLICA IDENTITY FULL"
)

// tooLarge is the hint about a change that is larger than what is taken here.
var tooLarge = regexp.MustCompile(`raise resources\.max_message to at least \S+; resources\.memory_budget must hold four such changes`)

// inConnectorWords gives an error's text, or a hint, in the connector's words.
func inConnectorWords(text string) string {
	text = tooLarge.ReplaceAllString(text, "take the large column out with a column list of the publication, or the stream out of the catalog")
	return connectorWords.Replace(text)
}
