// Package session compares sessions that documents show with what the commands print. Only tests use it.
package session

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Session is a command in a document, and what it prints there. A line with … stands for any lines.
type Session struct {
	Command string
	Printed string
}

var fence = regexp.MustCompile("(?s)```\n\\$ ([^\n]*)\n(.*?)```")

// Read gives the sessions of a document whose command begins with a text, and fails if there are none.
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

// Exactly says whether a command printed exactly that.
func (s Session) Exactly(printed string) bool {
	var parts []string
	for _, p := range strings.Split("\n"+s.Printed, "\n…") {
		parts = append(parts, regexp.QuoteMeta(p))
	}
	return regexp.MustCompile("^" + strings.Join(parts, "(?s:\n.*?)") + "$").MatchString("\n" + printed)
}
