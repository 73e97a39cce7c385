package schema

import (
	"regexp"
	"slices"
	"strings"
)

// follows lists the kinds of entries that come with what they depend on, such as
// an index with its table. All others come only where something needs them.
var follows = map[string]bool{
	"DEFAULT":           true,
	"SEQUENCE":          true, // of an identity column, or owned by one
	"SEQUENCE OWNED BY": true,
	"CONSTRAINT":        true,
	"CHECK CONSTRAINT":  true,
	"INDEX":             true,
	"STATISTICS":        true,
	"COMMENT":           true,
}

// joins lists the kinds that tie several entries together and come when all of
// them do.
var joins = map[string]bool{
	"TABLE ATTACH": true,
	"INDEX ATTACH": true,
	"CAST":         true,
}

// closure finds the entries that the tables with the given OIDs need, as a set
// of dump ids.
type closure struct {
	byID  map[int]*entry
	all   []entry
	taken map[int]bool
	size  int // of taken, without foreign keys
}

func closeOver(all []entry, tables map[uint32]bool) map[int]bool {
	c := &closure{all: all, byID: make(map[int]*entry, len(all)), taken: map[int]bool{}}
	for i := range all {
		c.byID[all[i].id] = &all[i]
	}
	for i := range all {
		if e := &all[i]; e.desc == "TABLE" && tables[e.oid] {
			c.take(e)
		}
	}
	for before := -1; before != c.size; {
		before = c.size
		c.takeFollowers()
		c.takeCalled()
	}
	return c.taken
}

// take adds an entry and what it depends on.
func (c *closure) take(e *entry) {
	if c.taken[e.id] {
		return
	}
	c.taken[e.id] = true
	c.size++
	for _, id := range e.deps {
		if dep := c.byID[id]; dep != nil {
			c.take(dep)
		}
	}
}

func (c *closure) takeFollowers() {
	for i := range c.all {
		e := &c.all[i]
		if c.taken[e.id] {
			continue
		}
		switch {
		case e.desc == "FK CONSTRAINT":
			// Without what it refers to, which may stay behind: whether it is
			// made is decided later, and said if not.
			c.taken[e.id] = c.hasTable(e)
		case joins[e.desc] && c.allTaken(e):
			c.take(e)
		case follows[e.desc] && c.follows(e):
			c.take(e)
		}
	}
}

// follows tells whether something taken brings the entry along.
func (c *closure) follows(e *entry) bool {
	for _, id := range e.deps {
		dep := c.byID[id]
		if dep == nil || !c.taken[id] {
			continue
		}
		switch {
		case e.desc == "COMMENT":
			return true
		case e.desc == "SEQUENCE OWNED BY":
			// A sequence can be taken for a default alone and belong to a
			// table that stays behind.
			return c.hasTable(dep)
		case dep.desc == "TABLE", dep.desc == "DOMAIN":
			return true
		}
	}
	return false
}

func (c *closure) hasTable(e *entry) bool {
	return slices.ContainsFunc(e.deps, func(id int) bool {
		return c.taken[id] && c.byID[id] != nil && c.byID[id].desc == "TABLE"
	})
}

// allTaken tells whether everything that the entry ties together comes. The
// function of a cast need not: it comes with the cast.
func (c *closure) allTaken(e *entry) bool {
	n := 0
	for _, id := range e.deps {
		dep := c.byID[id]
		if dep == nil || e.desc == "CAST" && dep.desc == "FUNCTION" {
			continue
		}
		if !c.taken[id] {
			return false
		}
		n++
	}
	return n > 0
}

// takeCalled adds the functions that taken functions call by name: what a body
// given as a string calls is not recorded as a dependency.
func (c *closure) takeCalled() {
	called := map[string]bool{}
	for i := range c.all {
		if e := &c.all[i]; c.taken[e.id] && isRoutine(e) {
			for _, m := range callText.FindAllStringSubmatch(e.defn, -1) {
				called[strings.ToLower(m[1])+unquote(m[2])] = true
			}
		}
	}
	for i := range c.all {
		if e := &c.all[i]; !c.taken[e.id] && isRoutine(e) && called[routineName(e)] {
			c.take(e)
		}
	}
}

func isRoutine(e *entry) bool { return e.desc == "FUNCTION" || e.desc == "AGGREGATE" }

// callText finds a name, bare or quoted, in front of a parenthesis.
var callText = regexp.MustCompile(`(?:([\pL_][\pL\pN_$]*)|("(?:[^"]|"")+"))\s*\(`)

// routineName takes the name from an entry's tag, such as f(integer).
func routineName(e *entry) string {
	m := callText.FindStringSubmatch(e.tag)
	if m == nil {
		return ""
	}
	return m[1] + unquote(m[2])
}

func unquote(ident string) string {
	if len(ident) < 2 {
		return ident
	}
	return strings.ReplaceAll(ident[1:len(ident)-1], `""`, `"`)
}
