package inspect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"hairpin/report"
)

func TestPlainJSON(t *testing.T) {
	for text, want := range map[string]string{
		`"a\nb\tc\"d\\e"`: "a\nb\tc\"d\\e", `"\u001b[2J\b\u202e"`: `\u001b[2J\b\u202e`, `"\\u001b"`: `\u001b`,
		`"\\\u001b"`: `\\u001b`, "\"\u202e\"": `\u202e`,
		`"a -\u003e b \u0026\u0026 \ud83d\ude00"`: "a -> b && \U0001f600",
	} {
		var got string
		if err := json.Unmarshal(plainJSON([]byte(text)), &got); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestHostileReport checks that a node's report is only shown and has no other effect.
func TestHostileReport(t *testing.T) {
	r, err := report.Parse([]byte(`{"node": "a\u001b[2J\nnode-b", "version": "v1\u009b", "reason": "one\ntwo\r",
		"parts": [{"system": "ovn\t", "error": "x\u001b]0;owned\u0007"}], "problems": ["fine\nnode-c  agent  ready"],
		"api": {"unreachable": true, "error": "\u202e"},
		"listeners": [{"for": "\u0000"}], "egress": [{"address": "1\u001b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	s := ClusterStatus{Nodes: []NodeStatus{{Node: "a", Report: r}}, Controller: &LeaderStatus{Since: time.Now()}}
	if err := errors.Join(s.printText(&b, true), s.printText(&b, false)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if report.Plain(line, "\n") != line || strings.HasPrefix(line, "node-") {
			t.Errorf("a terminal obeys, or a reader believes %q", line)
		}
	}
	if !strings.Contains(b.String(), `a\u001b[2J\u000anode-b`) || r.Reason != "one\ntwo\\u000d" {
		t.Errorf("%q\n%s", r.Reason, b.String())
	}
}

// pack makes an archive as a node could.
func pack(t *testing.T, members int, name string, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for range members {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestHostileArchive checks that a node's archive is limited, that its names stay in their folder,
// and that it has no terminal control characters.
func TestHostileArchive(t *testing.T) {
	const most = 1 << 20
	for _, c := range []struct {
		what    string
		members int
		size    int64
		name    string
		refused bool
		want    string
	}{
		{"another folder", 1, 10, "../../etc/passwd", false, "etc/passwd"},
		{"an absolute name", 1, 10, "/etc/passwd", false, "etc/passwd"},
		{"a name that clears the screen", 1, 10, "hairpin/a\x1b[2J", false, `a\u001b[2J`},
		{"too many", maxMembers + 1, 0, "a", true, ""},
		{"one too big", 1, most + 1, "a", true, ""},
		{"together too big", 3, most / 2, "a", true, ""},
	} {
		text := pack(t, c.members, c.name, c.size)
		list, err := unpack(text, most)
		if errors.Is(err, errTooLong) != c.refused {
			t.Errorf("%s: %d bytes packed: %d members, %v", c.what, len(text), len(list), err)
		}
		if c.want != "" && (len(list) != 1 || strings.TrimPrefix(list[0].name, "/") != c.want) {
			t.Errorf("%s: %q, want %q", c.what, list, c.want)
		}
	}
	var b bytes.Buffer
	if err := archive(&b, []member{{"a.txt", []byte("one\n\ttwo\x1b[2J\u009b31m\xff")}}); err != nil {
		t.Fatal(err)
	}
	list, err := unpack(b.Bytes(), most)
	if err != nil || len(list) != 1 || string(list[0].body) != "one\n\ttwo\\u001b[2J\\u009b31m\ufffd" {
		t.Errorf("%v: %q", err, list)
	}
	l := limitedBuffer{limit: 10}
	if _, err := io.Copy(&l, strings.NewReader("01234567890")); !errors.Is(err, errTooLong) || len(l.text) > 10 {
		t.Errorf("%v: %q", err, l.text)
	}
}
