package main

import (
	"strings"
	"time"

	"github.com/millrace/millrace/web"
)

// How the page writes it, the command does as well.
func size(n int64) string         { return web.Size(n) }
func count(n int64) string        { return web.Count(n) }
func span(d time.Duration) string { return web.Span(d) }

// grid lines up columns; the last one is not padded.
func grid(rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-len([]rune(cell))+2))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
