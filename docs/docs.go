// Package docs has the page that the program carries with it: what an error
// means and what to do, for somebody at night who has nothing but the program.
//
// An error is led to its section by its own words, or by those of its hint: the
// headings of the page are the only list, and no error holds a link.
package docs

import (
	_ "embed" // troubleshooting.md
	"regexp"
	"strings"
	"sync"
)

// Base is where the documentation of the newest version can be read.
const Base = "https://github.com/millrace/millrace/blob/main/docs/"

const page = "troubleshooting.md"

//go:embed troubleshooting.md
var source string

// Section is an entry of the page.
type Section struct {
	Name    string   // its anchor, without what is awkward in a command line
	Anchor  string   // what a link ends with
	Title   string   // the first of Texts
	Texts   []string // of errors, or with "hint: " in front of hints; … stands for what is put in
	Chapter string
	Body    string // Markdown

	errors, hints []string // of Texts, to be compared with
}

// Sections gives those of the page, in its order.
var Sections = sync.OnceValue(func() []*Section { return parse(source) })

// also begins the line with the further texts of a section.
const also = "Also: "

func parse(text string) []*Section {
	var all []*Section
	chapter := ""
	var now *Section
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "## "):
			chapter, now = strings.TrimSpace(line[3:]), nil
		case strings.HasPrefix(line, "### "):
			title := strings.TrimSpace(line[4:])
			now = &Section{Name: nameOf(Anchor(title)), Anchor: Anchor(title), Title: title, Texts: []string{title}, Chapter: chapter}
			all = append(all, now)
		case now == nil:
		case now.Body == "" && strings.HasPrefix(line, also):
			for text := range strings.SplitSeq(line[len(also):], " · ") {
				now.Texts = append(now.Texts, strings.TrimSpace(text))
			}
		default:
			if now.Body != "" || strings.TrimSpace(line) != "" {
				now.Body += line
			}
		}
	}
	for _, s := range all {
		s.Body = strings.TrimSpace(s.Body)
		for _, t := range s.Texts {
			if h, ok := strings.CutPrefix(strings.ToLower(t), "hint: "); ok {
				s.hints = append(s.hints, h)
			} else {
				s.errors = append(s.errors, h)
			}
		}
	}
	return all
}

var dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// Anchor is what a link to a heading ends with, as GitHub and others make it.
func Anchor(heading string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

var hyphens = regexp.MustCompile(`-+`)

func nameOf(anchor string) string {
	return strings.Trim(hyphens.ReplaceAllString(anchor, "-"), "-")
}

// Link is where the section can be read.
func (s *Section) Link() string { return Base + page + "#" + s.Anchor }

// Named gives the section with a name, an anchor or a link, or nil.
func Named(name string) *Section {
	name = nameOf(name[strings.LastIndexByte(name, '#')+1:])
	for _, s := range Sections() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Find gives the section about an error, or nil: the one of which most is found in its
// text, and where there is none, in its hint.
func Find(text, hint string) *Section {
	if s := find(oneLine(text), func(s *Section) []string { return s.errors }); s != nil {
		return s
	}
	return find(oneLine(hint), func(s *Section) []string { return s.hints })
}

func find(text string, of func(*Section) []string) *Section {
	var best *Section
	most := 0
	for _, s := range Sections() {
		for _, heading := range of(s) {
			if n := likeness(heading, text); n > most {
				best, most = s, n
			}
		}
	}
	return best
}

// See is the link of an error's section, or "".
func See(text, hint string) string {
	if s := Find(text, hint); s != nil {
		return s.Link()
	}
	return ""
}

func oneLine(s string) string { return strings.ToLower(strings.Join(strings.Fields(s), " ")) }

// likeness is how many letters of a heading are found in a text; 0 when it does not stand for it.
// What the text is about may be missing, the part of the heading before "…: ", where it begins with
// the rest. Elsewhere the rest alone says too little: much "does not exist".
func likeness(heading, text string) int {
	n := pieces(heading, text)
	if _, rest, ok := strings.Cut(heading, "…: "); ok {
		if begin, _, _ := strings.Cut(rest, "…"); strings.HasPrefix(text, begin) {
			n = max(n, pieces(rest, text))
		}
	}
	return n
}

// pieces counts the letters of a heading when each of its pieces between ellipses is in the
// text, in order, as whole words, and there are at least two words of them. One
// word alone has to be the end of the text.
func pieces(heading, text string) int {
	if text == heading || strings.HasSuffix(text, ": "+heading) {
		return len(heading)
	}
	words, letters := 0, 0
	for piece := range strings.SplitSeq(heading, "…") {
		piece = strings.Trim(piece, " `\"")
		if piece == "" {
			continue
		}
		rest, ok := after(text, piece)
		if !ok {
			return 0
		}
		text = rest
		words += len(strings.Fields(piece))
		letters += len(piece)
	}
	if words < 2 {
		return 0
	}
	return letters
}

// after gives what follows a piece in a text, where the piece begins and ends
// with the words that it holds.
func after(text, piece string) (string, bool) {
	for from := 0; ; {
		i := strings.Index(text[from:], piece)
		if i < 0 {
			return "", false
		}
		begin, end := from+i, from+i+len(piece)
		if !inWord(text, begin) && !inWord(text, end) {
			return text[end:], true
		}
		from = begin + 1
	}
}

// inWord tells whether a place is between two letters or digits.
func inWord(text string, at int) bool {
	return at > 0 && at < len(text) && wordByte(text[at-1]) && wordByte(text[at])
}

func wordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z'
}

// Search gives the sections that hold all the words, in any order.
func Search(words []string) []*Section {
	var found []*Section
	for _, s := range Sections() {
		all := strings.ToLower(strings.Join(s.Texts, " ") + " " + s.Body)
		ok := len(words) > 0
		for _, w := range words {
			ok = ok && strings.Contains(all, strings.ToLower(w))
		}
		if ok {
			found = append(found, s)
		}
	}
	return found
}

var link = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)

// Plain is the section for a terminal: its links are written out.
func (s *Section) Plain() string {
	var b strings.Builder
	b.WriteString(s.Title + "\n")
	for _, t := range s.Texts[1:] {
		if h, isHint := strings.CutPrefix(t, "hint: "); isHint {
			b.WriteString("  or with the hint: " + h + "\n")
		} else {
			b.WriteString("  or: " + t + "\n")
		}
	}
	body := link.ReplaceAllStringFunc(s.Body, func(l string) string {
		m := link.FindStringSubmatch(l)
		to := m[2]
		switch {
		case strings.HasPrefix(to, "#"):
			to = Base + page + to
		case !strings.Contains(to, "://"):
			to = Base + to
		}
		if m[1] == m[2] {
			return to
		}
		return m[1] + " (" + to + ")"
	})
	b.WriteString("\n" + body + "\n\n" + s.Link() + "\n")
	return b.String()
}
