package report

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"Größe 日本 ok": "Größe 日本 ok", "a\x1b[2Jb": `a\u001b[2Jb`, "a\u009bb": `a\u009bb`, "a\nb\tc": `a` + "\n" + `b\u0009c`,
		"gone\r\b": `gone\u000d\u0008`, "\u202etxt": `\u202etxt`, "a\xffb": "a\ufffdb", "\x00": `\u0000`, "\x7f": `\u007f`,
	} {
		if got := Plain(text, "\n"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("wörd ", 300), strings.Repeat("ö", 1000), strings.Repeat("x", 1025), strings.Repeat("x", 1024)} {
		got := Cut(text, 1024)
		if len(got) > 1024 || !utf8.ValidString(got) || len(text) <= 1024 && got != text {
			t.Errorf("%d bytes are %d: %q", len(text), len(got), got)
		}
		if begin, end, is := strings.Cut(got, " … ("); is {
			if want := fmt.Sprintf("%d bytes more)", len(text)-len(begin)); end != want || !strings.HasPrefix(text, begin) || len(begin) < 900 {
				t.Errorf("%q, want %q", end, want)
			}
		}
	}
	if got := Cut(strings.Repeat("wörd ", 300), 1024); !strings.HasSuffix(strings.Split(got, " … ")[0], "wörd") {
		t.Errorf("a word is cut: %q", got)
	}
}
