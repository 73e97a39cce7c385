package main

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
)

// completionCommand takes the place of cobra's own, which has more shells and
// flags than are tested here.
func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the completions for a shell",
		Long: `Completion prints a script that completes verbs, flags and their values.

bash: millrace completion bash > /etc/bash_completion.d/millrace
zsh:  millrace completion zsh > "${fpath[1]}/_millrace"
fish: millrace completion fish > ~/.config/fish/completions/millrace.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(c.ValidArgs, args[0]) {
				return usage(c, errors.New("name one shell: bash, zsh or fish"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "zsh":
				return c.Root().GenZshCompletion(a.stdout)
			case "fish":
				return c.Root().GenFishCompletion(a.stdout, true)
			}
			return c.Root().GenBashCompletionV2(a.stdout, true)
		},
	}
}

// completeValues says what the common flags take.
func completeValues(root *cobra.Command) {
	fixed := func(values ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return values, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for flag, complete := range map[string]func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective){
		"log-format": fixed("text", "json"),
		"from":       fixed(),
		"to":         fixed(),
		"job":        fixed(),
		"table":      fixed(),
		"config": func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	} {
		if err := root.RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic(err) // a flag that does not exist
		}
	}
}
