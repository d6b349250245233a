package report

import (
	"testing"
)

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"Größe 日本 ok": "Größe 日本 ok", "a\x1b[2Jb": `a\u001b[2Jb`, "a\u009bb": `a\u009bb`, "a\nb\tc": `a` + "\n" +
			`b\u0009c`,
		"gone\r\b": `gone\u000d\u0008`, "\u202etxt": `\u202etxt`, "a\xffb": "a\ufffdb", "\x00": `\u0000`,
		"\x7f": `\u007f`,
	} {
		if got := Plain(text, "\n"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
