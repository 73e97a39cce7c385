package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/docs"
)

func (a *app) helpCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "help",
		Short: "Show what a verb takes, or what an error means",
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			about, _, err := c.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, below := range about.Commands() {
				if below.IsAvailableCommand() {
					names = append(names, below.Name()+"\t"+below.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usage(c, fmt.Errorf("there is nothing about %q", strings.Join(args, " ")))
			}
			return about.Help()
		},
	}
	c.AddCommand(a.helpErrors())
	return c
}

func (a *app) helpErrors() *cobra.Command {
	return &cobra.Command{
		Use:   "errors",
		Short: "Say what an error means and what to do",
		Long: `Errors prints the section of docs/troubleshooting.md about an error: by the name that stands
behind see: in the error, by its link, by the text of the error, or by words of it. Without
an argument it lists all of them. Nothing is asked of any server.`,
		Example: `  millrace help errors wal_level-is-not-logical
  millrace help errors 'publication millrace_shop: lacks public.orders'`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, s := range docs.Sections() {
				if len(args) == 0 {
					names = append(names, s.Name+"\t"+s.Title)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.explain(args) },
	}
}

// explanation is a section in JSON.
type explanation struct {
	Name    string   `json:"name"`
	Texts   []string `json:"texts"`
	Chapter string   `json:"chapter"`
	Text    string   `json:"text"`
	See     string   `json:"see"`
}

func (a *app) explain(args []string) error {
	found, all := sectionsAbout(args)
	switch {
	case len(found) == 0:
		return &millrace.Error{Op: "help", Err: errors.New("nothing is known about this error"),
			Hint: "millrace help errors, without more, lists all that is known"}
	case a.json:
		for _, s := range found {
			if err := a.printJSON(explanation{s.Name, s.Texts, s.Chapter, s.Body, s.Link()}); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	if len(found) == 1 {
		b.WriteString(found[0].Plain())
	} else {
		if !all {
			fmt.Fprintf(&b, "%d sections hold these words; millrace help errors NAME shows one of them.\n", len(found))
		}
		list(&b, found)
	}
	_, err := fmt.Fprint(a.stdout, b.String())
	return err
}

// sectionsAbout gives the one section that is meant, or those that have the words,
// or all.
func sectionsAbout(args []string) (found []*docs.Section, all bool) {
	text := strings.Join(args, " ")
	if text == "" {
		return docs.Sections(), true
	}
	if s := docs.Named(text); s != nil {
		return []*docs.Section{s}, false
	}
	if s := docs.Find(text, text); s != nil {
		return []*docs.Section{s}, false
	}
	return docs.Search(strings.Fields(text)), false
}

// list shows sections by chapters: the name and the text.
func list(b *strings.Builder, sections []*docs.Section) {
	chapter := ""
	width := len(slices.MaxFunc(sections, func(a, b *docs.Section) int { return len(a.Name) - len(b.Name) }).Name)
	for _, s := range sections {
		if s.Chapter != chapter {
			chapter = s.Chapter
			fmt.Fprintf(b, "\n%s\n", chapter)
		}
		fmt.Fprintf(b, "  %-*s  %s\n", min(width, 40), s.Name, s.Title)
	}
}
