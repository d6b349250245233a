// Package session compares sessions in documents with the output of the commands. Only tests use
// it.
package session

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Session is a command in a document, with its output there. A line with … matches any lines.
type Session struct {
	Command string
	Printed string
}

var fence = regexp.MustCompile("(?s)```\n\\$ ([^\n]*)\n(.*?)```")

// Read returns the sessions of a document whose command begins with a text, and fails if there are
// none.
func Read(t testing.TB, file, command string) []Session {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []Session
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(m[1], command) {
			list = append(list, Session{m[1], m[2]})
		}
	}
	if len(list) == 0 {
		t.Fatalf("%s has no session of %q", file, command)
	}
	return list
}

// varies matches what differs between runs: ports that the kernel chose, times, counts, table
// columns of these, and the version. That is the version of the commit only if Go finds a clone's
// files.
var varies = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\b(3[2-9]|[45]\d|60)\d{3}\b`), "PORT"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ms`), "N ms"},
	{regexp.MustCompile(`\b\d+ (packets?|pods|service frontends)\b`), "N $1"},
	{regexp.MustCompile(`  +(\d+(s|m\d+s)?)\b`), "  N"},
	{regexp.MustCompile(`\bhairpin (\(devel\)|v\d\S+)`), "hairpin VERSION"},
	{regexp.MustCompile(` +(\n|$)`), "$1"},
	{regexp.MustCompile(`  +`), "  "},
}

// Same reports whether a command of a lab printed the same, except for what differs between runs.
func (s Session) Same(printed string) bool {
	for _, n := range varies {
		s.Printed, printed = n.is.ReplaceAllString(s.Printed, n.as), n.is.ReplaceAllString(printed, n.as)
	}
	return s.Exactly(printed)
}

// Exactly reports whether a command printed exactly that.
func (s Session) Exactly(printed string) bool {
	var parts []string
	for _, p := range strings.Split("\n"+s.Printed, "\n…") {
		parts = append(parts, regexp.QuoteMeta(p))
	}
	return regexp.MustCompile("^" + strings.Join(parts, "(?s:\n.*?)") + "$").MatchString("\n" + printed)
}
