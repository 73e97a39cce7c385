package main

import "github.com/spf13/cobra"

// verbs are the commands, in the order of a job's life.
func (a *app) verbs() []*cobra.Command {
	return []*cobra.Command{
		a.checkCommand(),
		a.bootstrapCommand(),
		a.runCommand(),
		a.statusCommand(),
		a.waitCommand(),
		a.tableCommand(),
		a.cleanupCommand(),
		a.connectorCommand(),
		a.demoCommand(),
		a.helpCommand(),
		a.completionCommand(),
		a.docsCommand(),
	}
}
