package scale_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"hairpin/lab/scale"
)

// TestGraphs checks that measured rows are drawn, missing ones are left out, and it is XML.
func TestGraphs(t *testing.T) {
	table := scale.Table{Sizes: []int{10, 100, 1000}, Rows: []*scale.Row{
		{What: "node-a: all daemons: memory at rest", Unit: "MB", Values: []float64{100, 150, 200}},
		{What: "a node joins: CPU of all beyond that at rest", Unit: "ms", Values: []float64{0, 7, 70}},
	}}
	svg := table.Graphs()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{`points="56,128 163,82 270,36"`, `points="56,220 163,207 270,91"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("no line %s in\n%s", want, svg)
		}
	}
	if strings.Count(svg, "<polyline") != 2 {
		t.Errorf("lines of what was not measured:\n%s", svg)
	}
}
