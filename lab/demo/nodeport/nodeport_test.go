package nodeport

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table in docs/nodeport.md")

// docs/nodeport.md has the table (`go test ./lab/demo/nodeport -update`).
func TestDocument(t *testing.T) {
	const file, begin, end = "../../../docs/nodeport.md", "<!-- table -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := head + begin + Markdown() + end + tail
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatal("the table in docs/nodeport.md is not that of the code (-update rewrites it)")
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The table keeps the contract: where the sender must be seen, it is.
func TestContract(t *testing.T) {
	cases := Cases()
	if len(cases) != 12 {
		t.Fatalf("%d cases", len(cases))
	}
	for i, c := range cases {
		if c.Number != i+1 || !c.Masqueraded && c.Sees != Sender {
			t.Errorf("%+v", c)
		}
	}
}
