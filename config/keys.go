package config

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
)

// keys takes a mapping of tables to lists of columns.
func keys(to *map[string][]string) field {
	return field{set: func(v any) error {
		mapping, ok := v.(yaml.MapSlice)
		if !ok {
			return errors.New("want a mapping of tables to lists of columns, such as {public.events: [tenant, id]}")
		}
		read := map[string][]string{}
		for _, item := range mapping {
			table, ok := item.Key.(string)
			if !ok {
				return errors.New("tables must be text; put them in quotes")
			}
			var columns []string
			if err := texts(&columns).set(item.Value); err != nil {
				return fmt.Errorf("%s: %w", table, err)
			}
			read[table] = columns
		}
		*to = read
		return nil
	}}
}
